// Products of int16 rows with int8 columns. The sum of a chunk is an exact integer; chunks are
// added up as floats, in order, so that a row's sums are the same for every tile.
#pragma once

#include "float_panels.h"
#include "int16_rows.h"

namespace headrace {
namespace {

// A pair's sum is at most 2 * 32767 * 127 in size, a chunk's at most kScaleChunk / 2 of those.
static_assert(int64_t{kScaleChunk} * 32767 * 127 <= INT32_MAX);

// Rows of the operand, and where their sums go: 32 columns of each.
struct Int16Tile {
  const uint8_t* a;
  size_t a_stride;  // in bytes
  int k;
  float* sums;

  Int16Row row(int r) const { return {a + static_cast<size_t>(r) * a_stride, k}; }
};

#if defined(__AVX2__)

constexpr int kSteps = 4;  // pairs of numbers along k for which addresses are worked out once

// sums (+)= a[R rows][k0 .. k1) * 8 V columns from c on, of quants [k / 2][32][2]; one chunk.
template <int R, int V>
HEADRACE_INLINE void int16_columns(const uint8_t* quants, const Int16Tile& t, int c, int k0,
                                   int k1) {
  Ints8 acc[R][V] = {};
  const uint8_t* row = quants + static_cast<size_t>(k0) * kPanel + c * 2;
  const uint8_t* a = t.a + k0 * 2;
  for (int k = k0; k < k1; k += 2 * kSteps, row += kSteps * 2 * kPanel, a += kSteps * 4) {
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; s++) {
      __m256i w[V];
      prefetch(row + s * 2 * kPanel + 4096);
      for (int v = 0; v < V; v++) {
        w[v] = _mm256_cvtepi8_epi16(load_as<__m128i>(row + s * 2 * kPanel + v * 16));
      }
      for (int r = 0; r < R; r++) {
        const uint8_t* pair = a + static_cast<size_t>(r) * t.a_stride + s * 4;
        const __m256i x = _mm256_set1_epi32(load_as<int32_t>(pair));
        for (int v = 0; v < V; v++) acc[r][v] = dot_pairs(acc[r][v], w[v], x);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    const Floats scale = splat(t.row(r).scales[k0 / kScaleChunk]);
    for (int v = 0; v < V; v++) {
      float* sums = t.sums + r * kPanel + c + v * 8;
      const Floats before = k0 ? load(sums) : Floats{};
      store(sums, fma(__builtin_convertvector(acc[r][v], Floats), scale, before));
    }
  }
}

// As many sums as 16 registers hold beside the weights.
template <int R>
__attribute__((noinline)) void int16_rows(const uint8_t* quants, const Int16Tile& t, int k0,
                                          int k1) {
  constexpr int V = R <= 2 ? 4 : 2;
  for (int c = 0; c < kPanel; c += V * 8) int16_columns<R, V>(quants, t, c, k0, k1);
}

#else

template <int R>
void int16_rows(const uint8_t* quants, const Int16Tile& t, int k0, int k1) {
  for (int r = 0; r < R; r++) {
    const Int16Row row = t.row(r);
    int32_t exact[kPanel] = {};
    for (int k = k0; k < k1; k += 2) {
      const auto* w = reinterpret_cast<const int8_t*>(quants) + static_cast<size_t>(k) * kPanel;
      const int32_t x0 = row.quants[k], x1 = row.quants[k + 1];
      for (int c = 0; c < kPanel; c++) exact[c] += w[2 * c] * x0 + w[2 * c + 1] * x1;
    }
    const Floats scale = splat(row.scales[k0 / kScaleChunk]);
    for (int c = 0; c < kPanel; c += kLanes) {
      float* sums = t.sums + r * kPanel + c;
      const Floats before = k0 ? load(sums) : Floats{};
      store(sums, fma(__builtin_convertvector(load_as<Ints>(exact + c), Floats), scale, before));
    }
  }
}

#endif

constexpr int kInt16Rows = 6;

inline void int16_tile(const uint8_t* quants, Int16Tile t, int rows, int k0, int k1) {
  for (; rows >= kInt16Rows; rows -= kInt16Rows) {
    int16_rows<kInt16Rows>(quants, t, k0, k1);
    t.a += kInt16Rows * t.a_stride;
    t.sums += kInt16Rows * kPanel;
  }
  if (rows == 5) int16_rows<5>(quants, t, k0, k1);
  if (rows == 4) int16_rows<4>(quants, t, k0, k1);
  if (rows == 3) int16_rows<3>(quants, t, k0, k1);
  if (rows == 2) int16_rows<2>(quants, t, k0, k1);
  if (rows == 1) int16_rows<1>(quants, t, k0, k1);
}

// sums[rows][32] of rows [first, first + rows) of the operand; the columns' scales come last.
inline void multiply_int16(const Matrix& m, const uint8_t* panel, const Operand& a, int first,
                           int rows, float* sums) {
  const int k = round_up(m.k, kPad);
  const uint8_t* data = a.data + static_cast<size_t>(first) * a.row_bytes;
  const Int16Tile t{data, a.row_bytes, m.k, sums};
  for (int k0 = 0; k0 < k; k0 += kScaleChunk) {
    int16_tile(panel + kColumnScales, t, rows, k0, k0 + kScaleChunk < k ? k0 + kScaleChunk : k);
  }
  const float* scales = reinterpret_cast<const float*>(panel);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < kPanel; c += kLanes) {
      store(sums + r * kPanel + c, load(sums + r * kPanel + c) * load(scales + c));
    }
  }
}

}  // namespace
}  // namespace headrace
