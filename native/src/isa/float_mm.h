// Products of float rows with 32 columns of packed weights or keys. Every sum is one chain of
// multiply-adds along k, so that it is the same for every tile, block and route.
#pragma once

#include "float_panels.h"

namespace headrace {
namespace {

// Sources give columns [c, c + kLanes * V) of row k as floats; what a group shares is loaded once.
template <class Number>
struct PlainSource {  // float, bf16 or int8 [k][stride]
  const Number* data;
  size_t stride;
  template <int V>
  struct Group {
    const Number* data;
    size_t stride;
    HEADRACE_INLINE Floats at(int k, int v) const {
      return load(data + static_cast<size_t>(k) * stride + v * kLanes);
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int, int c) const {
    return {data + c, stride};
  }
};

struct Q8Source {
  const uint8_t *scales, *quants;
  template <int V>
  struct Group {
    Floats scale[V];
    const int8_t* data;
    HEADRACE_INLINE Floats at(int k, int v) const {
      return scale[v] * load(data + static_cast<size_t>(k) * kPanel + v * kLanes);
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int g, int c) const {
    Group<V> out;
    for (int v = 0; v < V; v++) out.scale[v] = load_scales(scales, g * kPanel + c + v * kLanes);
    out.data = reinterpret_cast<const int8_t*>(quants) + c;
    return out;
  }
};

// kLanes nibbles at p as floats.
HEADRACE_INLINE Floats load_nibbles(const uint8_t* p, bool high) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return (Floats)_mm256_cvtepi32_ps(high ? _mm256_srli_epi32(bytes, 4)
                                         : _mm256_and_si256(bytes, _mm256_set1_epi32(15)));
#else
  Ints nibbles;
  for (int i = 0; i < kLanes; i++) nibbles[i] = high ? p[i] >> 4 : p[i] & 15;
  return __builtin_convertvector(nibbles, Floats);
#endif
}

struct Q4Source {
  const uint8_t *scales, *minimums, *quants;
  template <int V>
  struct Group {
    Floats scale[V], minimum[V];
    const uint8_t* data;
    int first;
    HEADRACE_INLINE Floats at(int k, int v) const {
      const int c = first + v * kLanes;
      const uint8_t* p = data + static_cast<size_t>(k) * (kPanel / 2) + c % (kPanel / 2);
      return fma(scale[v], load_nibbles(p, c >= kPanel / 2), minimum[v]);
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int g, int c) const {
    Group<V> out;
    for (int v = 0; v < V; v++) {
      out.scale[v] = load_scales(scales, g * kPanel + c + v * kLanes);
      out.minimum[v] = load_scales(minimums, g * kPanel + c + v * kLanes);
    }
    out.data = quants;
    out.first = c;
    return out;
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
  for (int g = k0 / kGroup; g * kGroup < k1; g++) {
    const auto group = source.template group<V>(g, c);
    const int end = (g + 1) * kGroup < k1 ? (g + 1) * kGroup : k1;
    for (int k = g * kGroup; k < end; k++) {
      Floats w[V];
      for (int v = 0; v < V; v++) w[v] = group.at(k, v);
      for (int r = 0; r < R; r++) {
        const Floats x = splat(t.a[static_cast<size_t>(r) * t.a_stride + static_cast<size_t>(k)]);
        for (int v = 0; v < V; v++) acc[r][v] = fma(w[v], x, acc[r][v]);
      }
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
void tile_rows(const Source& source, const Tile& t, int columns, int k0, int k1, bool fresh) {
  constexpr int V = R <= 3 ? 4 : 2;
  for (int c = 0; c < columns; c += V * kLanes) {
    tile_columns<R, V>(source, t, c, k0, k1, fresh);
  }
}

// k0 is a multiple of kGroup; columns of 32.
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
    for (int g = k0 / kGroup; g * kGroup < k1; g++) {
      const auto group = source.template group<2>(g, c);
      const int end = (g + 1) * kGroup < k1 ? (g + 1) * kGroup : k1;
      for (int k = g * kGroup; k < end; k++) {
        float* row = out + static_cast<size_t>(k - k0) * static_cast<size_t>(columns) + c;
        store(row, group.at(k, 0));
        store(row + kLanes, group.at(k, 1));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
