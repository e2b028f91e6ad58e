// Arithmetic of 16 single-precision numbers as the emulated instructions do it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace headrace::emulation {

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint32_t U32 __attribute__((vector_size(64)));
typedef uint16_t U16 __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// Denormals become zeros of their sign.
__attribute__((always_inline)) inline F32 flush(F32 x) {
  const U32 bits = (U32)x;
  return (F32)(bits & ((U32)((bits & 0x7f800000u) != 0) | 0x80000000u));
}

__attribute__((always_inline)) inline F32 fused_plain(F32 a, F32 b, F32 c) {
  __m256 x[2], y[2], z[2];
  memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; i++) z[i] = _mm256_fmadd_ps(x[i], y[i], z[i]);
  memcpy(&c, z, sizeof c);
  return c;
}

// Fused, to nearest even, denormals flushed before and after. The rounded result decides.
__attribute__((always_inline)) inline F32 fused(F32 a, F32 b, F32 c) {
  return flush(fused_plain(flush(a), flush(b), flush(c)));
}

// While it lives, denormals are zeros, read and written, and sums round to nearest: as the products
// of bf16 do, whatever the thread's own mode is. What is computed must be read from memory after it
// and written before its end, or the compiler may compute it elsewhere.
class BfloatMode {
 public:
  BfloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~BfloatMode() { _mm_setcsr(before_); }
  BfloatMode(const BfloatMode&) = delete;
  BfloatMode& operator=(const BfloatMode&) = delete;

 private:
  unsigned before_;
};

// Of 16 pairs of bf16, the numbers at even and at odd places.
inline F32 even_bf16(U32 pairs) { return (F32)(pairs << 16); }
inline F32 odd_bf16(U32 pairs) { return (F32)(pairs & 0xffff0000u); }

// vcvtneps2bf16: denormals are read as zero, NaNs become quiet.
inline Halves to_bf16(F32 x) {
  const U32 bits = (U32)flush(x);
  const U32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return __builtin_convertvector(x == x ? rounded : bits >> 16 | 0x40u, Halves);
}

}  // namespace headrace::emulation
