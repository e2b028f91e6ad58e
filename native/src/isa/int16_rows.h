// Rows of 16-bit integers, the finest operand that a processor without bf16 products multiplies by
// integers: a number's error is 2^-16 of its chunk's greatest, where bf16's is 2^-9 of itself.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace headrace {
namespace {

// The largest magnitude of value(i), i < k a multiple of kLanes; NaN when one of them is not
// finite. Magnitudes are compared by their bits: among floats a comparison would lose a NaN.
template <class Value>
HEADRACE_INLINE float peak_of(Value value, int k) {
  Ints peak = {};
  for (int i = 0; i < k; i += kLanes) {
    const Ints magnitude = (Ints)abs(value(i));
    peak = magnitude > peak ? magnitude : peak;
  }
  int32_t lanes[kLanes], most = 0;
  store_as(lanes, peak);
  for (int i = 0; i < kLanes; i++) most = lanes[i] > most ? lanes[i] : most;
  constexpr int32_t kInfiniteBits = 0x7f800000;
  return most < kInfiniteBits ? load_as<float>(&most) : __builtin_nanf("");
}

#if defined(__AVX2__)
typedef int32_t Ints8 __attribute__((vector_size(32)));  // __m256i would cost copies in loops

// sums + w * x, of the two numbers along k in each 32 bits.
HEADRACE_INLINE Ints8 dot_pairs(Ints8 sums, __m256i w, __m256i x) {
  sums += (Ints8)_mm256_madd_epi16(w, x);
  asm("" : "+x"(sums));  // else GCC adds up the products of several steps first, out of registers
  return sums;
}
#endif

// A chunk whose greatest magnitude is below this is zero: the inverse of its scale would overflow.
constexpr float kLeastPeak = 0x1p-100f;

// Numbers come from value(i), i < k a multiple of kLanes. Of one that is not finite the scale is
// NaN, and the numbers are zeros.
template <class Value>
HEADRACE_INLINE float quantise_chunk(Value value, int k, int16_t* out) {
  const float most = peak_of(value, k);
  const float inverse = most >= kLeastPeak ? 32767.f / most : 0.f;
  for (int i = 0; i < k; i += kLanes) {
    const Ints q = inverse > 0 ? round_to_int(value(i) * inverse) : Ints{};
    store_as(out + i, __builtin_convertvector(q, Shorts));
  }
  return most / 32767.f;
}

// An Int16Row of numbers from value(i), i a multiple of kLanes.
template <class Value>
HEADRACE_INLINE void quantise_to_int16(Value value, int k, uint8_t* row) {
  const int padded = round_up(k, kPad), end = round_up(k, kLanes);
  const Int16Row places(row, k);
  auto* quants = const_cast<int16_t*>(places.quants);
  auto* sums = const_cast<float*>(places.sums);
  auto* scales = const_cast<float*>(places.scales);
  memset(quants + end, 0, static_cast<size_t>(padded - end) * sizeof(int16_t));
  for (int first = 0; first < k; first += kScaleChunk) {
    const int left = k - first, length = left < kScaleChunk ? left : kScaleChunk;
    const float scale = quantise_chunk(
        [=](int i) __attribute__((always_inline)) { return value(first + i); }, length,
        quants + first);
    scales[first / kScaleChunk] = scale;
    for (int i = first; i < first + round_up(length, kPad); i += kGroup) {
      int32_t sum = 0;
      for (int j = i; j < i + kGroup; j++) sum += quants[j];
      sums[i / kGroup] = static_cast<float>(sum);
    }
  }
}

}  // namespace
}  // namespace headrace
