// Products by tiles, 32 rows by 32 columns at a time, and the expansion of codes to bf16 in half
// precision.
#pragma once

#include "panels.h"

namespace headrace {
namespace {

// Eight tiles of 16 rows by 64 bytes. Tiles 0-3 hold sums, 4 and 5 rows, 6 and 7 columns.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);
constexpr TileConfiguration kTiles;

// GCC's tile intrinsics do not say that they read memory: without this, stores before them may be
// dropped or come too late.
HEADRACE_INLINE void finish_stores() { asm volatile("" ::: "memory"); }

struct AmxMachine {
  static constexpr int kRowsAtOnce = 32;
  // What 1 is in the bf16 numbers that expand makes: see to_bf16_rows.
  static constexpr float kCodeUnit = 2048.f, kGroupUnit = 65536.f;
  static constexpr float kExpandedZero = 0x1p-31f;
  static constexpr bool kBiasedBytes = false;
  static constexpr int kZeroCode = 128;

  static constexpr int order(int column, int k) {
    return column / 4 * 16 + k / 2 * 8 + column % 4 * 2 + k % 2;
  }
  static constexpr uint8_t code(int q) { return static_cast<uint8_t>(q + 128); }

  static void begin() {
    finish_stores();
    _tile_loadconfig(&kTiles);
  }
  static void end() { _tile_release(); }

  // A quarter of a group: 8 rows of one tile.
  template <WeightKind kKind>
  static HEADRACE_INLINE void expand(const uint8_t* group, uint8_t* step, int quarter) {
    const int half = quarter / 2, rows = quarter % 2 * 4;
    uint8_t* to = step + as_size(half) * kTile + as_size(rows) * 128;
    if constexpr (kKind == WeightKind::i8) {
      const uint8_t* from = group + as_size(half * 8 + rows) * kCodeRow;
      for (int i = 0; i < 4; i++) put_codes(to + i * 128, load_as<__m512i>(from + i * 64));
    } else if constexpr (kKind == WeightKind::q8) {
      const uint8_t* from = group + kHalves + as_size(half * 8 + rows) * kCodeRow;
      const __m512h scale = load_pairs(group + half * 32);
      for (int i = 0; i < 4; i++) put_scaled(to + i * 128, load_as<__m512i>(from + i * 64), scale);
    } else {
      const uint8_t* from = group + 2 * kHalves + as_size(half * 4 + rows / 2) * kCodeRow;
      const __m512h scale = load_pairs(group + half * 32);
      const __m512h minimum = load_pairs(group + kHalves + half * 32);
      for (int i = 0; i < 2; i++) {
        const __m512i w = load_as<__m512i>(from + i * 64), low = _mm512_set1_epi8(15);
        put_nibbles(to + i * 256, _mm512_and_si512(w, low), scale, minimum);
        put_nibbles(to + i * 256 + 128, _mm512_and_si512(_mm512_srli_epi16(w, 4), low), scale,
                    minimum);
      }
    }
    finish_stores();
  }

  // c[rows][32] (+)= a[rows][k] * b, rows <= 32; hook(step, 0..3) is called between the products.
  // Reads rows of a and writes rows of c up to a multiple of 16.
  template <bool kInt8, class Steps, class Hook>
  static HEADRACE_INLINE void multiply(const uint8_t* a, size_t a_bytes, const Steps& b, int steps,
                                       int rows, uint8_t* c, size_t c_bytes, Hook&& hook,
                                       bool accumulate) {
    finish_stores();
    if (rows > 16) {
      multiply_32<kInt8>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
    } else {
      multiply_16<kInt8>(a, a_bytes, b, steps, c, c_bytes, hook, accumulate);
    }
  }

 private:
  template <bool kInt8, class Steps, class Hook>
  static void multiply_32(const uint8_t* a, size_t a_bytes, const Steps& b, int steps, uint8_t* c,
                          size_t c_bytes, Hook&& hook, bool accumulate) {
    uint8_t* lower = c + 16 * c_bytes;
    if (accumulate) {
      _tile_loadd(0, c, c_bytes);
      _tile_loadd(1, c + 64, c_bytes);
      _tile_loadd(2, lower, c_bytes);
      _tile_loadd(3, lower + 64, c_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int k = 0; k < steps; k++) {
      const uint8_t* step = b(k);
      const uint8_t* rows = a + as_size(k) * 64;
      _tile_loadd(6, step, 64);
      hook(k, 0);
      _tile_loadd(4, rows, a_bytes);
      if constexpr (kInt8)
        _tile_dpbssd(0, 4, 6);
      else
        _tile_dpbf16ps(0, 4, 6);
      hook(k, 1);
      _tile_loadd(7, step + kTile, 64);
      if constexpr (kInt8)
        _tile_dpbssd(1, 4, 7);
      else
        _tile_dpbf16ps(1, 4, 7);
      hook(k, 2);
      _tile_loadd(5, rows + 16 * a_bytes, a_bytes);
      if constexpr (kInt8)
        _tile_dpbssd(2, 5, 6);
      else
        _tile_dpbf16ps(2, 5, 6);
      hook(k, 3);
      if constexpr (kInt8)
        _tile_dpbssd(3, 5, 7);
      else
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 64, c_bytes);
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + 64, c_bytes);
  }

  template <bool kInt8, class Steps, class Hook>
  static void multiply_16(const uint8_t* a, size_t a_bytes, const Steps& b, int steps, uint8_t* c,
                          size_t c_bytes, Hook&& hook, bool accumulate) {
    if (accumulate) {
      _tile_loadd(0, c, c_bytes);
      _tile_loadd(1, c + 64, c_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int k = 0; k < steps; k++) {
      const uint8_t* step = b(k);
      _tile_loadd(4, a + as_size(k) * 64, a_bytes);
      hook(k, 0);
      _tile_loadd(6, step, 64);
      hook(k, 1);
      if constexpr (kInt8)
        _tile_dpbssd(0, 4, 6);
      else
        _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, step + kTile, 64);
      hook(k, 2);
      if constexpr (kInt8)
        _tile_dpbssd(1, 4, 7);
      else
        _tile_dpbf16ps(1, 4, 7);
      hook(k, 3);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 64, c_bytes);
  }

  static HEADRACE_INLINE __m512h load_pairs(const uint8_t* halves) {
    const __m512i v = _mm512_cvtepu16_epi32(load_as<__m256i>(halves));
    return (__m512h)_mm512_or_si512(v, _mm512_slli_epi32(v, 16));
  }

  // Half precision to bf16: the exponent's low five bits stay, which makes every number 2^-16 of
  // what it was, and 0 becomes 2^-31, some 2^-20 of the smallest step between weights or less.
  static HEADRACE_INLINE void to_bf16_rows(uint8_t* to, __m512i low, __m512i high) {
    const __m512i keep = _mm512_set1_epi16(static_cast<short>(0x8fff));
    const __m512i exponent = _mm512_set1_epi16(96 << 7);
    const int kAndOr = 0xea;  // (a & b) | c
    store_as(to, _mm512_ternarylogic_epi32(_mm512_srai_epi16(low, 3), keep, exponent, kAndOr));
    store_as(to + 64,
             _mm512_ternarylogic_epi32(_mm512_srai_epi16(high, 3), keep, exponent, kAndOr));
  }

  // The byte u below 0x78 is 32768 + 32 u in half precision; without 36864 it is 32 (u - 128).
  static HEADRACE_INLINE void put_codes(uint8_t* to, __m512i codes) {
    const __m512i high = _mm512_set1_epi8(0x78);
    const __m512h zero = (__m512h)_mm512_set1_epi16(0x7880);
    to_bf16_rows(to, (__m512i)_mm512_sub_ph((__m512h)_mm512_unpacklo_epi8(codes, high), zero),
                 (__m512i)_mm512_sub_ph((__m512h)_mm512_unpackhi_epi8(codes, high), zero));
  }

  // Rounded, not cut: bf16 keeps three bits less.
  static HEADRACE_INLINE void put_rounded(uint8_t* to, __m512h low, __m512h high) {
    const __m512i half = _mm512_set1_epi16(4);
    to_bf16_rows(to, _mm512_add_epi16((__m512i)low, half), _mm512_add_epi16((__m512i)high, half));
  }

  // The byte u below 0x64 is 1024 + u in half precision.
  static HEADRACE_INLINE void put_scaled(uint8_t* to, __m512i codes, __m512h scale) {
    const __m512i high = _mm512_set1_epi8(0x64);
    const __m512h zero = (__m512h)_mm512_set1_epi16(0x6480);
    const __m512h a = _mm512_sub_ph((__m512h)_mm512_unpacklo_epi8(codes, high), zero);
    const __m512h b = _mm512_sub_ph((__m512h)_mm512_unpackhi_epi8(codes, high), zero);
    put_rounded(to, _mm512_mul_ph(a, scale), _mm512_mul_ph(b, scale));
  }
  static HEADRACE_INLINE void put_nibbles(uint8_t* to, __m512i codes, __m512h scale,
                                          __m512h minimum) {
    const __m512i high = _mm512_set1_epi8(0x64);
    const __m512h zero = (__m512h)_mm512_set1_epi16(0x6400);
    const __m512h a = _mm512_sub_ph((__m512h)_mm512_unpacklo_epi8(codes, high), zero);
    const __m512h b = _mm512_sub_ph((__m512h)_mm512_unpackhi_epi8(codes, high), zero);
    put_rounded(to, _mm512_fmadd_ph(a, scale, minimum), _mm512_fmadd_ph(b, scale, minimum));
  }
};

}  // namespace
}  // namespace headrace
