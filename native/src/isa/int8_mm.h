// Products of int8 rows with int8 columns. The sums are exact integers, so their order is free.
// Quants lie within -127..127: a product of two pairs fits into 16 bits.
#pragma once

#include "float_panels.h"

namespace headrace {
namespace {

constexpr int kInt8Depth = 512;  // rows of a panel that stay in the first cache: 16 KiB

// Rows of int8, and where their sums go: 32 columns of each, [rows][32].
struct Int8Tile {
  const int8_t* a;
  size_t a_stride;
  int32_t* sums;
};

#if defined(__AVX2__)

// sums (+)= a[R rows][k0 .. k1) * 8 V columns from c on, of quants [k / 4][32][4].
template <int R, int V>
HEADRACE_INLINE void int8_columns(const uint8_t* quants, const Int8Tile& t, int c, int k0, int k1) {
  __m256i acc[R][V];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) {
      acc[r][v] = k0 ? load_as<__m256i>(t.sums + r * kPanel + c + v * 8) : __m256i{};
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  for (int k = k0; k < k1; k += 4) {
    const uint8_t* row = quants + static_cast<size_t>(k) * kPanel + c * 4;
    for (int v = 0; v < V; v++) {
      const __m256i w = load_as<__m256i>(row + v * 32), size = _mm256_abs_epi8(w);
      if (v % 2 == 0) prefetch(row + v * 32 + 4096);
      for (int r = 0; r < R; r++) {
        const int8_t* x = t.a + static_cast<size_t>(r) * t.a_stride + k;
        const __m256i signs = _mm256_sign_epi8(_mm256_set1_epi32(load_as<int32_t>(x)), w);
        const __m256i pairs = _mm256_maddubs_epi16(size, signs);
        acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) store_as(t.sums + r * kPanel + c + v * 8, acc[r][v]);
  }
}

template <int R>
void int8_rows(const uint8_t* quants, const Int8Tile& t, int k0, int k1) {
  constexpr int V = R <= 2 ? 4 : 2;
  for (int c = 0; c < kPanel; c += V * 8) int8_columns<R, V>(quants, t, c, k0, k1);
}

#else

template <int R>
void int8_rows(const uint8_t* quants, const Int8Tile& t, int k0, int k1) {
  for (int r = 0; r < R; r++) {
    int32_t* sums = t.sums + r * kPanel;
    if (!k0) memset(sums, 0, kPanel * sizeof(int32_t));
    const int8_t* row = t.a + static_cast<size_t>(r) * t.a_stride;
    for (int k = k0; k < k1; k += 4) {
      const int8_t* x = row + k;
      for (int c = 0; c < kPanel; c++) {
        const auto* w =
            reinterpret_cast<const int8_t*>(quants) + static_cast<size_t>(k) * kPanel + c * 4;
        sums[c] += w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3];
      }
    }
  }
}

#endif

inline void int8_tile(const uint8_t* quants, Int8Tile t, int rows, int k0, int k1) {
  for (; rows >= 4; rows -= 4) {
    int8_rows<4>(quants, t, k0, k1);
    t.a += 4 * t.a_stride;
    t.sums += 4 * kPanel;
  }
  if (rows == 3) int8_rows<3>(quants, t, k0, k1);
  if (rows == 2) int8_rows<2>(quants, t, k0, k1);
  if (rows == 1) int8_rows<1>(quants, t, k0, k1);
}

// sums[rows][32] of rows [first, first + rows) of the operand, scaled. The integers stand in the
// same place before.
inline void multiply_int8(const Matrix& m, const uint8_t* panel, const Operand& a, int first,
                          int rows, float* sums) {
  const int k = round_up(m.k, kPad);
  int32_t* exact = reinterpret_cast<int32_t*>(sums);
  const uint8_t* data = a.data + static_cast<size_t>(first) * a.row_bytes;
  const Int8Tile t{reinterpret_cast<const int8_t*>(data), a.row_bytes, exact};
  for (int k0 = 0; k0 < k; k0 += kInt8Depth) {
    int8_tile(panel + kColumnScales, t, rows, k0, k0 + kInt8Depth < k ? k0 + kInt8Depth : k);
  }
  const float* scales = reinterpret_cast<const float*>(panel);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < kPanel; c += kLanes) {
      const Ints sum = load_as<Ints>(exact + r * kPanel + c);
      store(sums + r * kPanel + c,
            __builtin_convertvector(sum, Floats) * (load(scales + c) * a.scales[first + r]));
    }
  }
}

}  // namespace
}  // namespace headrace
