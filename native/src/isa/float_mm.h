// Products of float rows with 32 columns of packed weights or keys. Every sum is one chain of
// multiply-adds along k, so that it is the same for every tile, block and route.
#pragma once

#include "float_panels.h"

namespace headrace {
namespace {

// How far before its use a weight is asked for; the processor itself stops at the end of a page.
constexpr size_t kAhead = 4096;

// A source's group gives rows [k, end) of columns [c, c + kLanes * V), at most kGroup of them, as
// floats: each(k, end, use) calls use(k, vectors) in rising order.
template <class Number, bool kStreamed = false>
struct PlainSource {                       // float, bf16 or int8 [k][stride]
  static constexpr int kShared = 1 << 30;  // numbers along k for which one group serves
  const Number* data;
  size_t stride;
  template <int V>
  struct Group {
    const Number* data;
    size_t stride;
    template <class Use>
    HEADRACE_INLINE void each(int k, int end, Use use) const {
      for (; k < end; k++) {
        Floats w[V];
        const Number* row = data + static_cast<size_t>(k) * stride;
        if constexpr (kStreamed) prefetch(reinterpret_cast<const uint8_t*>(row) + kAhead);
        for (int v = 0; v < V; v++) w[v] = load(row + v * kLanes);
        use(k, w);
      }
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int, int c) const {
    return {data + c, stride};
  }
};

struct Q8Source {
  static constexpr int kShared = kGroup;
  const uint8_t* panel;
  template <int V>
  struct Group {
    Floats scale[V];
    const int8_t* data;
    template <class Use>
    HEADRACE_INLINE void each(int k, int end, Use use) const {
      const int8_t* row = data;
      for (; k < end; k++, row += kPanel) {
        Floats w[V];
        prefetch(row + kAhead);
        for (int v = 0; v < V; v++) w[v] = scale[v] * load(row + v * kLanes);
        use(k, w);
      }
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int g, int c) const {
    Group<V> out;
    const uint8_t* data = panel + static_cast<size_t>(g) * kQ8Group;
    for (int v = 0; v < V; v++) out.scale[v] = load_scales(data, c + v * kLanes);
    out.data = reinterpret_cast<const int8_t*>(data + kGroupScales) + c;
    return out;
  }
};

// Nibble s of a word, left where it stands, is 16^s times the number: a scale that is 16^s times
// smaller gives the same product, to the bit, and saves the shift. The last would meet the sign.
struct Q4Source {
  static constexpr int kShared = kGroup;
  const uint8_t* panel;
  template <int V>
  struct Group {
    Floats scale[V], minimum[V];
    const uint8_t* data;
    template <class Use>
    HEADRACE_INLINE void each(int k, int /*end*/, Use use) const {
      step<0>(k, use);
    }
    template <int S, class Use>
    HEADRACE_INLINE void step(int k, const Use& use) const {
      constexpr bool kLast = S == kGroup / 4 - 1;
      constexpr float kSmaller = kLast ? 1.f : 1.f / static_cast<float>(1u << 4 * S);
      Floats part[V];
      prefetch(data + kAhead + S * (kQ4Group / (kGroup / 4)));
      for (int v = 0; v < V; v++) part[v] = scale[v] * kSmaller;
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        Floats w[V];
        for (int v = 0; v < V; v++) {
          const Bits words = load_as<Bits>(data + (i * kPanel + v * kLanes) * 4);
          const Bits nibbles = kLast ? words >> 28 : words & (15u << 4 * S);
          w[v] = fma(part[v], __builtin_convertvector((Ints)nibbles, Floats), minimum[v]);
        }
        use(k + 4 * S + i, w);
      }
      if constexpr (!kLast) step<S + 1>(k, use);
    }
  };
  template <int V>
  HEADRACE_INLINE Group<V> group(int g, int c) const {
    Group<V> out;
    const uint8_t* data = panel + static_cast<size_t>(g) * kQ4Group;
    for (int v = 0; v < V; v++) {
      out.scale[v] = load_scales(data, c + v * kLanes);
      out.minimum[v] = load_scales(data + kGroupScales, c + v * kLanes);
    }
    out.data = data + 2 * kGroupScales + c * 4;
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
  for (int k = k0; k < k1; k += Source::kShared) {
    const auto group = source.template group<V>(k / kGroup, c);
    const int end = k1 - k < Source::kShared ? k1 : k + Source::kShared;
    group.each(
        k, end, [&](int i, const Floats(&w)[V]) __attribute__((always_inline)) {
          for (int r = 0; r < R; r++) {
            const Floats x =
                splat(t.a[static_cast<size_t>(r) * t.a_stride + static_cast<size_t>(i)]);
            for (int v = 0; v < V; v++) acc[r][v] = fma(w[v], x, acc[r][v]);
          }
        });
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
    for (int k = k0; k < k1; k += Source::kShared) {
      const auto group = source.template group<2>(k / kGroup, c);
      const int end = k1 - k < Source::kShared ? k1 : k + Source::kShared;
      group.each(
          k, end, [=](int i, const Floats(&w)[2]) __attribute__((always_inline)) {
            float* row = out + static_cast<size_t>(i - k0) * static_cast<size_t>(columns) + c;
            store(row, w[0]);
            store(row + kLanes, w[1]);
          });
    }
  }
}

}  // namespace
}  // namespace headrace
