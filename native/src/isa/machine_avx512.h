// Products by vdpbf16ps and vpdpbusd, and the expansion of codes to bf16.
#pragma once

#include "panels.h"

namespace headrace {
namespace {

// Sums of bf16 and of int8 products, in the types that the instructions have inside: casts in a
// loop make GCC copy every register.
template <bool kInt8>
struct SumsOf {
  using Type = __m512;
};
template <>
struct SumsOf<true> {
  using Type = Ints;
};

struct Avx512Machine {
  static constexpr int kRowsAtOnce = 8;
  static constexpr float kCodeUnit = 1.f, kGroupUnit = 1.f;  // value of 1 in expanded codes
  static constexpr float kExpandedZero = 0.f;
  static constexpr bool kBiasedBytes = true;  // int8 weights are stored as 0..255 for vpdpbusd
  static constexpr int kZeroCode = 0;

  static constexpr int order(int column, int k) { return k / 2 * 32 + column * 2 + k % 2; }
  static constexpr uint8_t code(int q) { return static_cast<uint8_t>(q); }
  static void begin() {}
  static void end() {}

  // A quarter of a group: 8 rows of one tile.
  template <WeightKind kKind>
  static HEADRACE_INLINE void expand(const uint8_t* group, uint8_t* step, int quarter) {
    const int half = quarter / 2, rows = quarter % 2 * 4;
    uint8_t* to = step + as_size(half) * kTile + as_size(rows) * 128;
    if constexpr (kKind == WeightKind::i8) {
      const uint8_t* from = group + as_size(half * 8 + rows) * kCodeRow;
      for (int i = 0; i < 8; i++) {
        _mm512_storeu_si512(
            to + i * 64, to_pairs(signed_floats(from + i * 32), signed_floats(from + i * 32 + 16)));
      }
    } else if constexpr (kKind == WeightKind::q8) {
      const uint8_t* from = group + kHalves + as_size(half * 8 + rows) * kCodeRow;
      const Pairs scale = load_pairs(group + half * 32);
      for (int i = 0; i < 8; i++) {
        _mm512_storeu_si512(to + i * 64,
                            to_pairs(_mm512_mul_ps(signed_floats(from + i * 32), scale.low),
                                     _mm512_mul_ps(signed_floats(from + i * 32 + 16), scale.high)));
      }
    } else {
      const uint8_t* from = group + 2 * kHalves + as_size(half * 4 + rows / 2) * kCodeRow;
      const Pairs scale = load_pairs(group + half * 32);
      const Pairs minimum = load_pairs(group + kHalves + half * 32);
      for (int i = 0; i < 4; i++) {  // 32 bytes: a row of the low halves, a later one of the high
        uint8_t* low = to + i / 2 * 256 + i % 2 * 64;
        const __m128i a = load_as<__m128i>(from + i * 32), b = load_as<__m128i>(from + i * 32 + 16);
        put_nibbles(low, a, b, scale, minimum);
        put_nibbles(low + 128, _mm_srli_epi16(a, 4), _mm_srli_epi16(b, 4), scale, minimum);
      }
    }
  }

  // c[rows][32] (+)= a[rows][k] * b, rows <= 32; hook(step, 0..3) is called while the first rows
  // run.
  template <bool kInt8, class Steps, class Hook>
  static void multiply(const uint8_t* a, size_t a_bytes, const Steps& b, int steps, int rows,
                       uint8_t* c, size_t c_bytes, Hook&& hook, bool accumulate) {
    run<kInt8>(a, a_bytes, b, steps, rows < 8 ? rows : 8, c, c_bytes, hook, accumulate);
    for (int r = 8; r < rows; r += 8) {
      run<kInt8>(a + as_size(r) * a_bytes, a_bytes, b, steps, rows - r < 8 ? rows - r : 8,
                 c + as_size(r) * c_bytes, c_bytes, NoHook{}, accumulate);
    }
  }

 private:
  struct Pairs {  // of the columns 0-7 and 8-15, each number twice
    __m512 low, high;
  };

  static HEADRACE_INLINE Pairs load_pairs(const uint8_t* halves) {
    const __m512 v = _mm512_cvtph_ps(load_as<__m256i>(halves));
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    return {_mm512_permutexvar_ps(low, v), _mm512_permutexvar_ps(high, v)};
  }
  static HEADRACE_INLINE __m512 signed_floats(const uint8_t* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(codes)));
  }
  static HEADRACE_INLINE __m512i to_pairs(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
  static HEADRACE_INLINE __m512 weight(__m128i nibbles, __m512 scale, __m512 minimum) {
    const __m128i low = _mm_and_si128(nibbles, _mm_set1_epi8(15));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)), scale, minimum);
  }
  static HEADRACE_INLINE void put_nibbles(uint8_t* to, __m128i low, __m128i high,
                                          const Pairs& scale, const Pairs& minimum) {
    _mm512_storeu_si512(
        to, to_pairs(weight(low, scale.low, minimum.low), weight(high, scale.high, minimum.high)));
  }

  template <bool kInt8, class Steps, class Hook>
  static HEADRACE_INLINE void run(const uint8_t* a, size_t a_bytes, const Steps& b, int steps,
                                  int rows, uint8_t* c, size_t c_bytes, Hook&& hook,
                                  bool accumulate) {
    switch (rows) {
      case 1:
        return some_rows<kInt8, 1>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 2:
        return some_rows<kInt8, 2>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 3:
        return some_rows<kInt8, 3>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 4:
        return some_rows<kInt8, 4>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 5:
        return some_rows<kInt8, 5>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 6:
        return some_rows<kInt8, 6>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      case 7:
        return some_rows<kInt8, 7>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
      default:
        return some_rows<kInt8, 8>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
    }
  }

  static HEADRACE_INLINE __m512 dot(__m512 sum, __m512i pair, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pair, (__m512bh)b);
  }
  static HEADRACE_INLINE Ints dot(Ints sum, __m512i numbers, __m512i b) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, b, numbers);
  }

  // Sum of a row's int8 numbers: what the weights' bias of 128 must be taken off for.
  static HEADRACE_INLINE int row_sum(const uint8_t* a, int steps) {
    __m512i sum = _mm512_setzero_si512();
    for (int k = 0; k < steps; k++) {
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), load_as<__m512i>(a + k * 64));
    }
    return _mm512_reduce_add_epi32(sum);
  }

  // One fixed order along k for each row, whatever kRows is.
  template <bool kInt8, int kRows, class Steps, class Hook>
  static void some_rows(const uint8_t* a, size_t a_bytes, const Steps& b, int steps, uint8_t* c,
                        size_t c_bytes, Hook&& hook, bool accumulate) {
    using Sum = typename SumsOf<kInt8>::Type;
    Sum sums[kRows][2];
    for (int r = 0; r < kRows; r++) {
      const uint8_t* row = c + as_size(r) * c_bytes;
      sums[r][0] = accumulate ? load_as<Sum>(row) : Sum{};
      sums[r][1] = accumulate ? load_as<Sum>(row + 64) : Sum{};
    }
    for (int k = 0; k < steps; k++) {
      const uint8_t* step = b(k);
      for (int part = 0; part < 4; part++) {
        hook(k, part);
        for (int j = part * 4; j < part * 4 + 4; j++) {
          const __m512i left = load_as<__m512i>(step + j * 64);
          const __m512i right = load_as<__m512i>(step + kTile + j * 64);
          for (int r = 0; r < kRows; r++) {
            const uint8_t* p = a + as_size(r) * a_bytes + k * 64 + j * 4;
            const __m512i numbers = _mm512_set1_epi32(load_as<int32_t>(p));
            sums[r][0] = dot(sums[r][0], numbers, left);
            sums[r][1] = dot(sums[r][1], numbers, right);
          }
        }
      }
    }
    for (int r = 0; r < kRows; r++) {
      if constexpr (kInt8) {
        // The biased sums of a long row wrap around, and come back here.
        const uint32_t bias = 128 * static_cast<uint32_t>(row_sum(a + as_size(r) * a_bytes, steps));
        sums[r][0] = (Ints)((Bits)sums[r][0] - bias);
        sums[r][1] = (Ints)((Bits)sums[r][1] - bias);
      }
      store_as(c + as_size(r) * c_bytes, sums[r][0]);
      store_as(c + as_size(r) * c_bytes + 64, sums[r][1]);
    }
  }
};

}  // namespace
}  // namespace headrace
