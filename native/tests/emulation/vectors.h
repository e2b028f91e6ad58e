// The AVX-512 intrinsics in use, on the compiler's own vector types.
#pragma once

#include <immintrin.h>

#include "numbers.h"

namespace headrace::emulation {

typedef int16_t I16 __attribute__((vector_size(64)));
typedef _Float16 F16 __attribute__((vector_size(64)));
typedef int8_t I8 __attribute__((vector_size(64)));
typedef uint8_t U8 __attribute__((vector_size(64)));

inline __m512i set1_epi8(int x) { return (__m512i)(I8{} + static_cast<int8_t>(x)); }
inline __m512i set1_epi16(int x) { return (__m512i)(I16{} + static_cast<int16_t>(x)); }
inline __m512i set1_epi32(int x) { return (__m512i)(I32{} + x); }
template <class... T>
inline __m512i setr_epi32(T... x) {
  return (__m512i)I32{x...};
}

inline __m512i add_epi16(__m512i a, __m512i b) { return (__m512i)((U16)a + (U16)b); }
inline __m512i add_epi32(__m512i a, __m512i b) { return (__m512i)((U32)a + (U32)b); }
inline __m512i sub_epi32(__m512i a, __m512i b) { return (__m512i)((U32)a - (U32)b); }
inline __m512i and_si512(__m512i a, __m512i b) { return (__m512i)((U32)a & (U32)b); }
inline __m512i or_si512(__m512i a, __m512i b) { return (__m512i)((U32)a | (U32)b); }
inline __m512i slli_epi32(__m512i a, int n) { return (__m512i)((U32)a << n); }
inline __m512i srli_epi16(__m512i a, int n) { return (__m512i)((U16)a >> n); }
inline __m512i srai_epi16(__m512i a, int n) { return (__m512i)((I16)a >> n); }

inline __m512i ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  U32 out = {};
  for (int i = 0; i < 8; i++) {
    if (!(table >> i & 1)) continue;
    const U32 x = i & 4 ? (U32)a : ~(U32)a, y = i & 2 ? (U32)b : ~(U32)b;
    out |= x & y & (i & 1 ? (U32)c : ~(U32)c);
  }
  return (__m512i)out;
}

// Within each 16 bytes, the low or high 8 bytes of a and b by turns.
inline __m512i unpack_epi8(__m512i a, __m512i b, int first) {
  U8 out;
  for (int i = 0; i < 64; i++) {
    const int from = i / 16 * 16 + first + i % 16 / 2;
    out[i] = i % 2 ? ((U8)b)[from] : ((U8)a)[from];
  }
  return (__m512i)out;
}

inline __m512 permutexvar_ps(__m512i index, __m512 a) {
  F32 out;
  for (int i = 0; i < 16; i++) out[i] = ((F32)a)[((I32)index)[i] & 15];
  return (__m512)out;
}

template <class Small, class Vector>
inline __m512i widen(Vector v) {
  Small numbers[16];
  static_assert(sizeof numbers == sizeof v);
  memcpy(numbers, &v, sizeof v);
  I32 out;
  for (int i = 0; i < 16; i++) out[i] = numbers[i];
  return (__m512i)out;
}
inline __m512i cvtepi8_epi32(__m128i v) { return widen<int8_t>(v); }
inline __m512i cvtepu16_epi32(__m256i v) { return widen<uint16_t>(v); }
inline __m512 cvtepi32_ps(__m512i v) { return (__m512) __builtin_convertvector((I32)v, F32); }
inline __m512 cvtph_ps(__m256i v) {
  _Float16 numbers[16];
  memcpy(numbers, &v, sizeof v);
  F32 out;
  for (int i = 0; i < 16; i++) out[i] = static_cast<float>(numbers[i]);
  return (__m512)out;
}
inline __m256i cvtneps_pbh(__m512 v) { return (__m256i)to_bf16((F32)v); }
inline __m512i cvtne2ps_pbh(__m512 high, __m512 low) {
  const Halves halves[2] = {to_bf16((F32)low), to_bf16((F32)high)};
  __m512i out;
  memcpy(&out, halves, sizeof out);
  return out;
}

inline __m512 mul_ps(__m512 a, __m512 b) { return (__m512)((F32)a * (F32)b); }
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return (__m512)fused_plain((F32)a, (F32)b, (F32)c);
}

// Half precision keeps its denormals. One rounding: single precision is exact enough for the
// product and the difference of two halves, double precision for the product and the sum of three.
inline __m512i sub_ph(__m512i a, __m512i b) { return (__m512i)((F16)a - (F16)b); }
inline __m512i mul_ph(__m512i a, __m512i b) { return (__m512i)((F16)a * (F16)b); }
inline __m512i fmadd_ph(__m512i a, __m512i b, __m512i c) {
  F16 out;
  for (int i = 0; i < 32; i++) {
    const double product = static_cast<double>(((F16)a)[i]) * static_cast<double>(((F16)b)[i]);
    out[i] = static_cast<_Float16>(product + static_cast<double>(((F16)c)[i]));
  }
  return (__m512i)out;
}

// The number at the odd place first, then the one at the even place: two fused multiply-adds. Out
// of line, or the compiler takes minutes over the products that are made of it.
__attribute__((noinline)) inline __m512 dpbf16_ps(__m512 sum, __m512i a, __m512i b) {
  const F32 odd = fused(odd_bf16((U32)a), odd_bf16((U32)b), (F32)sum);
  return (__m512)fused(even_bf16((U32)a), even_bf16((U32)b), odd);
}

// a: 0..255, b: -128..127
inline __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  U32 out = (U32)sum;
  for (int i = 0; i < 4; i++) {
    const I32 x = (I32)((U32)a >> i * 8 & 255u), y = (I32)((U32)b << (24 - i * 8)) >> 24;
    out += (U32)(x * y);
  }
  return (__m512i)out;
}

inline int reduce_add_epi32(__m512i v) {
  uint32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += ((U32)v)[i];
  return static_cast<int>(sum);
}

}  // namespace headrace::emulation

#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_srai_epi16
#undef _mm512_ternarylogic_epi32
#undef _mm512_setr_epi32
#undef _mm512_cvtph_ps
#define __m512h __m512i
#define __m512bh __m512i
#define _mm512_setzero_si512() \
  __m512i {}
#define _mm512_storeu_si512(to, v) ((void)(*(__m512i_u*)(to) = (v)))
#define _mm512_set1_epi8(x) headrace::emulation::set1_epi8(x)
#define _mm512_set1_epi16(x) headrace::emulation::set1_epi16(x)
#define _mm512_set1_epi32(x) headrace::emulation::set1_epi32(x)
#define _mm512_setr_epi32(...) headrace::emulation::setr_epi32(__VA_ARGS__)
#define _mm512_add_epi16(a, b) headrace::emulation::add_epi16(a, b)
#define _mm512_add_epi32(a, b) headrace::emulation::add_epi32(a, b)
#define _mm512_sub_epi32(a, b) headrace::emulation::sub_epi32(a, b)
#define _mm512_and_si512(a, b) headrace::emulation::and_si512(a, b)
#define _mm512_or_si512(a, b) headrace::emulation::or_si512(a, b)
#define _mm512_slli_epi32(a, n) headrace::emulation::slli_epi32(a, n)
#define _mm512_srli_epi16(a, n) headrace::emulation::srli_epi16(a, n)
#define _mm512_srai_epi16(a, n) headrace::emulation::srai_epi16(a, n)
#define _mm512_ternarylogic_epi32(a, b, c, table) \
  headrace::emulation::ternarylogic_epi32(a, b, c, table)
#define _mm512_unpacklo_epi8(a, b) headrace::emulation::unpack_epi8(a, b, 0)
#define _mm512_unpackhi_epi8(a, b) headrace::emulation::unpack_epi8(a, b, 8)
#define _mm512_permutexvar_ps(index, a) headrace::emulation::permutexvar_ps(index, a)
#define _mm512_cvtepi8_epi32(v) headrace::emulation::cvtepi8_epi32(v)
#define _mm512_cvtepu16_epi32(v) headrace::emulation::cvtepu16_epi32(v)
#define _mm512_cvtepi32_ps(v) headrace::emulation::cvtepi32_ps(v)
#define _mm512_cvtph_ps(v) headrace::emulation::cvtph_ps(v)
#define _mm512_cvtneps_pbh(v) headrace::emulation::cvtneps_pbh(v)
#define _mm512_cvtne2ps_pbh(a, b) headrace::emulation::cvtne2ps_pbh(a, b)
#define _mm512_mul_ps(a, b) headrace::emulation::mul_ps(a, b)
#define _mm512_fmadd_ps(a, b, c) headrace::emulation::fmadd_ps(a, b, c)
#define _mm512_sub_ph(a, b) headrace::emulation::sub_ph(a, b)
#define _mm512_mul_ph(a, b) headrace::emulation::mul_ph(a, b)
#define _mm512_fmadd_ph(a, b, c) headrace::emulation::fmadd_ph(a, b, c)
#define _mm512_dpbf16_ps(sum, a, b) headrace::emulation::dpbf16_ps(sum, a, b)
#define _mm512_dpbusd_epi32(sum, a, b) headrace::emulation::dpbusd_epi32(sum, a, b)
#define _mm512_reduce_add_epi32(v) headrace::emulation::reduce_add_epi32(v)
