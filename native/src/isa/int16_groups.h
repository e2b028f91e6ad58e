// Products of int16 rows with weights whose groups of 32 have scales of their own: int8, or 4 bits
// with a minimum. A group's sum is an exact integer, so no tile can change it; groups are added up
// as floats in one order, times their scales, and chunks of them times the row's scale.
#pragma once

#include "float_panels.h"
#include "pairs.h"

namespace headrace {
namespace {

static_assert(int64_t{kGroup} * 32767 * 128 <= INT32_MAX, "a group's sum fits its lane");
static_assert(kScaleChunk % kGroup == 0);

constexpr int kGroupPairs = kGroup / 2;
constexpr int kChunkGroups = kScaleChunk / kGroup;
constexpr int kPairRow = kPanel * 2;  // numbers in the pairs of all columns
constexpr int kGroupTileRows = 6;
constexpr int kPackedRows = 4;  // up to here a tile reads packed nibbles, beyond it expands them

// Where the groups of a chunk begin. each<V>(g, c, use) calls use(pair, w) for the pairs of group g
// in columns [c, c + kLanes * V), in rising order.
struct Q8Pairs {
  static constexpr bool kMinimum = false;
  const uint8_t* first;
  const uint8_t* group(int g) const { return first + static_cast<size_t>(g) * kQ8Group; }

  template <int V, class Use>
  HEADRACE_INLINE void each(int g, int c, Use use) const {
    const auto* data = reinterpret_cast<const int8_t*>(group(g) + kGroupScales) + 2 * c;
#pragma GCC unroll 16
    for (int i = 0; i < kGroupPairs; i++, data += kPairRow) {
      Pairs w[V];
      prefetch(data + kAhead);
      for (int v = 0; v < V; v++) w[v] = load_pairs(data + 2 * v * kLanes);
      use(i, w);
    }
  }
};

struct Q4Pairs {
  static constexpr bool kMinimum = true;
  const uint8_t* first;
  const uint8_t* group(int g) const { return first + static_cast<size_t>(g) * kQ4Group; }

  template <int V, class Use>
  HEADRACE_INLINE void each(int g, int c, Use use) const {
    const uint8_t* data = group(g) + 2 * kGroupScales + 4 * c;
    prefetch(group(g) + kAhead);
    prefetch(group(g) + kAhead + 64);
#pragma GCC unroll 4
    for (int i = 0; i < kGroupPairs; i += 4, data += 4 * kPanel) {
      UnsignedPairs words[V];
      for (int v = 0; v < V; v++) {
        if (v % 2 == 0) prefetch(data + 4 * v * kLanes + kAhead);
        words[v] = load_as<UnsignedPairs>(data + 4 * v * kLanes);
      }
      Pairs w[V];
      for (int v = 0; v < V; v++) w[v] = (Pairs)(words[v] & 15);
      use(i, w);
      for (int v = 0; v < V; v++) w[v] = (Pairs)(words[v] >> 4 & 15);
      use(i + 1, w);
      for (int v = 0; v < V; v++) w[v] = (Pairs)(words[v] >> 8 & 15);
      use(i + 2, w);
      for (int v = 0; v < V; v++) w[v] = (Pairs)(words[v] >> 12);
      use(i + 3, w);
    }
  }
};

// The same numbers, expanded to int16 [group][pair][32][2].
struct ExpandedPairs {
  static constexpr bool kMinimum = true;
  Q4Pairs packed;
  const int16_t* numbers;
  const uint8_t* group(int g) const { return packed.group(g); }

  template <int V, class Use>
  HEADRACE_INLINE void each(int g, int c, Use use) const {
    const int16_t* row = numbers + g * kGroup * kPanel + 2 * c;
    for (int i = 0; i < kGroupPairs; i++, row += kPairRow) {
      Pairs w[V];
      for (int v = 0; v < V; v++) w[v] = load_as<Pairs>(row + 2 * v * kLanes);
      use(i, w);
    }
  }
};

inline void expand_groups(const Q4Pairs& packed, int num_groups, int16_t* out) {
  for (int g = 0; g < num_groups; g++, out += kGroup * kPanel) {
    for (int c = 0; c < kPanel; c += 2 * kLanes) {
      packed.each<2>(
          g, c, [=](int i, const Pairs(&w)[2]) __attribute__((always_inline)) {
            int16_t* place = out + i * kPairRow + 2 * c;
            store_as(place, w[0]);
            store_as(place + 2 * kLanes, w[1]);
          });
    }
  }
}

// What rows hold of one chunk, and where their sums go: [rows][32].
struct GroupTile {
  const int16_t* quants;  // of the first row, as the next two
  const float* group_sums;
  const float* scale;
  size_t row_bytes;
  float* sums;
  int num_groups;
  bool fresh;

  template <class T>
  HEADRACE_INLINE const T* in_row(const T* first, int row) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(first) +
                                      static_cast<size_t>(row) * row_bytes);
  }
  void skip(int rows) {
    quants = in_row(quants, rows);
    group_sums = in_row(group_sums, rows);
    scale = in_row(scale, rows);
    sums += rows * kPanel;
  }
};

// chunk += R rows times V vectors of columns of group g, without the rows' scales.
template <int R, int V, class Source>
HEADRACE_INLINE void add_group(const Source& source, const GroupTile& t, int g, int c,
                               Floats (&chunk)[R][V]) {
  Ints exact[R][V] = {};
  source.template each<V>(
      g, c, [&](int i, const Pairs(&w)[V]) __attribute__((always_inline)) {
        for (int r = 0; r < R; r++) {
          const Pairs x = splat_pair(t.in_row(t.quants, r) + g * kGroup + 2 * i);
          for (int v = 0; v < V; v++) exact[r][v] = dot(exact[r][v], x, w[v]);
        }
      });
  const uint8_t* scales = source.group(g);
  for (int v = 0; v < V; v++) {
    const Floats scale = load_scales(scales, c + v * kLanes);
    for (int r = 0; r < R; r++) {
      chunk[r][v] = fma(__builtin_convertvector(exact[r][v], Floats), scale, chunk[r][v]);
    }
  }
  if constexpr (!Source::kMinimum) return;
  for (int v = 0; v < V; v++) {
    const Floats minimum = load_scales(scales + kGroupScales, c + v * kLanes);
    for (int r = 0; r < R; r++) {
      chunk[r][v] = fma(splat(t.in_row(t.group_sums, r)[g]), minimum, chunk[r][v]);
    }
  }
}

// As many integer sums as 16 registers hold beside the weights.
template <int R, class Source>
__attribute__((noinline)) void add_chunk(const Source& source, const GroupTile& t) {
  constexpr int V = R <= 2 ? 4 : 2;
  for (int c = 0; c < kPanel; c += V * kLanes) {
    Floats chunk[R][V] = {};
    for (int g = 0; g < t.num_groups; g++) add_group(source, t, g, c, chunk);
    for (int r = 0; r < R; r++) {
      const Floats scale = splat(*t.in_row(t.scale, r));
      for (int v = 0; v < V; v++) {
        float* sums = t.sums + r * kPanel + c + v * kLanes;
        store(sums, fma(chunk[r][v], scale, t.fresh ? Floats{} : load(sums)));
      }
    }
  }
}

template <class Source>
void add_chunk_to_rows(const Source& source, GroupTile t, int rows) {
  for (; rows >= kGroupTileRows; rows -= kGroupTileRows) {
    add_chunk<kGroupTileRows>(source, t);
    t.skip(kGroupTileRows);
  }
  if (rows == 5) add_chunk<5>(source, t);
  if (rows == 4) add_chunk<4>(source, t);
  if (rows == 3) add_chunk<3>(source, t);
  if (rows == 2) add_chunk<2>(source, t);
  if (rows == 1) add_chunk<1>(source, t);
}

// `t`: one chunk of a panel of q8 or q4 whose groups begin at `group`.
inline void multiply_chunk(WeightKind kind, const uint8_t* group, const GroupTile& t, int rows,
                           int16_t* expanded) {
  if (kind == WeightKind::q8) return add_chunk_to_rows(Q8Pairs{group}, t, rows);
  const Q4Pairs packed{group};
  if (rows <= kPackedRows) return add_chunk_to_rows(packed, t, rows);
  expand_groups(packed, t.num_groups, expanded);
  add_chunk_to_rows(ExpandedPairs{packed, expanded}, t, rows);
}

// sums[rows][32] of rows [first, first + rows) of the operand with a panel of q8 or q4.
// `expanded`: room for kScaleChunk numbers of every column.
inline void multiply_groups(const Matrix& m, const uint8_t* panel, const Operand& a, int first,
                            int rows, float* sums, int16_t* expanded) {
  const Int16Row row(a.data + static_cast<size_t>(first) * a.row_bytes, m.k);
  const int num_groups = round_up(m.k, kPad) / kGroup;
  const size_t group_bytes = m.kind == WeightKind::q8 ? kQ8Group : kQ4Group;
  for (int g = 0; g < num_groups; g += kChunkGroups) {
    const int left = num_groups - g;
    GroupTile t;
    t.quants = row.quants + g * kGroup;
    t.group_sums = row.sums + g;
    t.scale = row.scales + g / kChunkGroups;
    t.row_bytes = a.row_bytes;
    t.sums = sums;
    t.num_groups = left < kChunkGroups ? left : kChunkGroups;
    t.fresh = g == 0;
    multiply_chunk(m.kind, panel + static_cast<size_t>(g) * group_bytes, t, rows, expanded);
  }
}

}  // namespace
}  // namespace headrace
