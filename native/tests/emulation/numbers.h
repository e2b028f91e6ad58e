// Arithmetic of single numbers as the emulated instructions do it.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace::emulation {

template <class To, class From>
inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline float flush(float x) {
  const uint32_t bits = bits_of<uint32_t>(x);
  return bits & 0x7f800000u ? x : bits_of<float>(bits & 0x80000000u);
}
inline float from_bf16(uint16_t h) { return flush(bits_of<float>(static_cast<uint32_t>(h) << 16)); }

// Fused, to nearest even, denormals flushed before and after. The exact result decides: one that is
// a denormal only before rounding is not flushed.
inline float fused(float a, float b, float c) {
  return flush(__builtin_fmaf(flush(a), flush(b), flush(c)));
}
inline float add(float a, float b) { return flush(flush(a) + flush(b)); }

// vcvtneps2bf16: denormals are read as zero, NaNs become quiet.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of<uint32_t>(flush(x));
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace headrace::emulation
