// Two 16-bit integers along k in each lane, the operands of integer products.
#pragma once

#include "int16_rows.h"

namespace headrace {
namespace {

typedef int16_t Pairs __attribute__((vector_size(kLanes * 4)));
typedef uint16_t UnsignedPairs __attribute__((vector_size(kLanes * 4)));

HEADRACE_INLINE Pairs splat_pair(const int16_t* p) { return (Pairs)(load_as<int32_t>(p) + Ints{}); }

HEADRACE_INLINE Pairs load_pairs(const int8_t* p) {
#if defined(__AVX2__)
  return (Pairs)_mm256_cvtepi8_epi16(load_as<__m128i>(p));
#else
  typedef int8_t BytePairs __attribute__((vector_size(kLanes * 2)));
  return __builtin_convertvector(load_as<BytePairs>(p), Pairs);
#endif
}

// sum + x[0] * w[0] + x[1] * w[1] in each lane.
HEADRACE_INLINE Ints dot(Ints sum, Pairs x, Pairs w) {
#if defined(__AVX2__)
  return (Ints)dot_pairs((Ints8)sum, (__m256i)w, (__m256i)x);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)x, (__m128i)w);
#else
  for (int i = 0; i < kLanes; i++) sum[i] += x[2 * i] * w[2 * i] + x[2 * i + 1] * w[2 * i + 1];
  return sum;
#endif
}

}  // namespace
}  // namespace headrace
