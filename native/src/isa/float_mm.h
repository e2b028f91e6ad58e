// Products of float rows with 32 columns of packed weights or keys. Every sum is one chain of
// multiply-adds along k, so that it is the same for every tile, block and route.
#pragma once

#include "float_panels.h"

namespace headrace {
namespace {

// Weights or keys as floats: of float, bf16 or int8 [k][stride].
template <class Number, bool kStreamed = false>
struct PlainSource {
  const Number* data;
  size_t stride;

  // Columns [c, c + kLanes * V) of row k.
  template <int V>
  HEADRACE_INLINE void read(int k, int c, Floats (&w)[V]) const {
    const Number* row = data + static_cast<size_t>(k) * stride + c;
    if constexpr (kStreamed) prefetch(reinterpret_cast<const uint8_t*>(row) + kAhead);
    for (int v = 0; v < V; v++) w[v] = load(row + v * kLanes);
  }
};

// Rows of floats, and where their sums go: 32 columns of each.
struct Tile {
  const float* a;
  size_t a_stride;
  float* sums;
  size_t sums_stride;
};

// sums (+)= a[R rows][k0 .. k1) * source[k0 .. k1)[c .. c + V vectors)
template <int R, int V, class Source>
HEADRACE_INLINE void tile_columns(const Source& source, const Tile& t, int c, int k0, int k1,
                                  bool fresh) {
  Floats acc[R][V];
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) {
      acc[r][v] =
          fresh ? Floats{} : load(t.sums + static_cast<size_t>(r) * t.sums_stride + c + v * kLanes);
    }
  }
  for (int k = k0; k < k1; k++) {
    Floats w[V];
    source.read(k, c, w);
    for (int r = 0; r < R; r++) {
      const Floats x = splat(t.a[static_cast<size_t>(r) * t.a_stride + static_cast<size_t>(k)]);
      for (int v = 0; v < V; v++) acc[r][v] = fma(w[v], x, acc[r][v]);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int v = 0; v < V; v++) {
      store(t.sums + static_cast<size_t>(r) * t.sums_stride + c + v * kLanes, acc[r][v]);
    }
  }
}

constexpr int kTileRows = 6;

// Twelve sums, as many as 16 registers hold beside the operands.
template <int R, class Source>
__attribute__((noinline)) void tile_rows(const Source& source, const Tile& t, int columns, int k0,
                                         int k1, bool fresh) {
  constexpr int V = R <= 3 ? 4 : 2;
  for (int c = 0; c < columns; c += V * kLanes) {
    tile_columns<R, V>(source, t, c, k0, k1, fresh);
  }
}

// `columns`: a multiple of 32.
template <class Source>
void tile(const Source& source, Tile t, int rows, int columns, int k0, int k1, bool fresh) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    tile_rows<kTileRows>(source, t, columns, k0, k1, fresh);
    t.a += kTileRows * t.a_stride;
    t.sums += kTileRows * t.sums_stride;
  }
  if (rows == 5) tile_rows<5>(source, t, columns, k0, k1, fresh);
  if (rows == 4) tile_rows<4>(source, t, columns, k0, k1, fresh);
  if (rows == 3) tile_rows<3>(source, t, columns, k0, k1, fresh);
  if (rows == 2) tile_rows<2>(source, t, columns, k0, k1, fresh);
  if (rows == 1) tile_rows<1>(source, t, columns, k0, k1, fresh);
}

// The same numbers as floats [k1 - k0][columns].
template <class Source>
void expand(const Source& source, int columns, int k0, int k1, float* out) {
  for (int c = 0; c < columns; c += 2 * kLanes) {
    float* row = out + c;
    for (int k = k0; k < k1; k++, row += columns) {
      Floats w[2];
      source.read(k, c, w);
      store(row, w[0]);
      store(row + kLanes, w[1]);
    }
  }
}

}  // namespace
}  // namespace headrace
