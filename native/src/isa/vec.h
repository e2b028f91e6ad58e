// Vectors as wide as the level's registers, on the compiler's own vector types. Only these
// functions know intrinsics; where there is no fused multiply-add the level rounds twice, always.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HEADRACE_INLINE inline __attribute__((always_inline))

namespace headrace {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));
typedef uint16_t Bf16;

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504f;

template <class V>
HEADRACE_INLINE V load_as(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
HEADRACE_INLINE void store_as(void* p, V v) {
  memcpy(p, &v, sizeof v);
}

HEADRACE_INLINE Floats splat(float x) { return x - Floats{}; }
HEADRACE_INLINE Floats load(const float* p) { return load_as<Floats>(p); }
HEADRACE_INLINE void store(float* p, Floats v) { store_as(p, v); }

// The first n lanes, zeros after them.
HEADRACE_INLINE Floats load_first(const float* p, int n) {
  if (n >= kLanes) return load(p);
  Floats v = {};
  memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
  return v;
}

HEADRACE_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Of a NaN and a number, the number when it is b: max(x, limit) is never NaN.
HEADRACE_INLINE Floats max(Floats a, Floats b) { return a > b ? a : b; }
HEADRACE_INLINE Floats min(Floats a, Floats b) { return a < b ? a : b; }
HEADRACE_INLINE Floats abs(Floats a) { return (Floats)((Bits)a & 0x7fffffffu); }

// Halves are added to halves: the same order whatever the compiler.
HEADRACE_INLINE float sum(Floats v) {
  float a[kLanes];
  store_as(a, v);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) a[i] += a[i + width];
  }
  return a[0];
}
HEADRACE_INLINE float largest(Floats v) {
  float a[kLanes];
  store_as(a, v);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  }
  return a[0];
}

// Whether a bit is set in one of the lanes.
HEADRACE_INLINE bool any(Ints v) {
  int32_t a[kLanes], bits = 0;
  store_as(a, v);
  for (int i = 0; i < kLanes; i++) bits |= a[i];
  return bits != 0;
}

HEADRACE_INLINE float to_float(Bf16 h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  return load_as<float>(&u);
}
HEADRACE_INLINE Floats load(const Bf16* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_as<__m256i>(p)), 16);
#elif defined(__AVX2__)
  return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_as<__m128i>(p)), 16);
#else
  return (Floats)(__builtin_convertvector(load_as<Halves>(p), Bits) << 16);
#endif
}
HEADRACE_INLINE Floats load(const int8_t* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(__builtin_convertvector(load_as<Bytes>(p), Ints), Floats);
#endif
}

// Rounds to nearest even; a NaN stays one. The instruction makes denormals zero.
HEADRACE_INLINE Halves to_bf16(Floats v) {
#if defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)v);
#else
  const Bits u = (Bits)v;
  const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const Bits quiet = (u >> 16) | 0x40u;
  return __builtin_convertvector(v == v ? rounded : quiet, Halves);
#endif
}
HEADRACE_INLINE Bf16 to_bf16(float x) {
  const uint32_t u = load_as<uint32_t>(&x);
  if (x != x) return static_cast<Bf16>((u >> 16) | 0x40u);
  return static_cast<Bf16>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

HEADRACE_INLINE void store(Bf16* p, Floats v) { store_as(p, to_bf16(v)); }
template <class Wide>
HEADRACE_INLINE void store_first(Wide* p, Floats v, int n) {
  if (n >= kLanes) return store(p, v);
  Wide lanes[kLanes];
  store(lanes, v);
  memcpy(p, lanes, static_cast<size_t>(n) * sizeof(Wide));
}

// To nearest even; |v| < 2^22.
HEADRACE_INLINE Ints round_to_int(Floats v) { return (Ints)(v + 12582912.f) - 0x4b400000; }
// To -127..127; a NaN becomes one of them.
HEADRACE_INLINE Bytes to_bytes(Floats v) {
  const Floats limited = min(max(v, splat(-127.f)), splat(127.f));
  return __builtin_convertvector(round_to_int(limited), Bytes);
}

// 2^x to about 1e-7 for x <= 127; 0 for x <= -126 and for a NaN.
HEADRACE_INLINE Floats exp2_down(Floats x) {
  const Floats low = splat(-126.f);
  const Floats limited = max(x, low);
  const Floats shifted = limited + 12582912.f;
  const Floats f = limited - (shifted - 12582912.f);
  Floats r = splat(1.54035304e-4f);
  r = fma(r, f, splat(1.33335581e-3f));
  r = fma(r, f, splat(9.61812911e-3f));
  r = fma(r, f, splat(5.55041087e-2f));
  r = fma(r, f, splat(2.40226507e-1f));
  r = fma(r, f, splat(6.93147181e-1f));
  r = fma(r, f, splat(1.f));
  r = (Floats)((Ints)r + ((Ints)shifted << 23));
  return x > low ? r : Floats{};
}
// The same; 2^127 and a little from 127 on.
HEADRACE_INLINE Floats exp2(Floats x) { return exp2_down(min(splat(127.f), x)); }
HEADRACE_INLINE Floats exp(Floats x) { return exp2(x * kLog2E); }

HEADRACE_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace headrace
