// Products of a level with float operands and a block of the cache. Every sum is one chain of
// multiply-adds, over a head's numbers or over keys, the same for every number of rows.
#pragma once

#include "attention.h"
#include "float_panels.h"

namespace headrace {
namespace {

// Rows at a time. Their sums, up to twelve vectors, and what is multiplied fill the registers; a
// block's numbers are widened once for all of them.
constexpr int kHeadRows = 6;
// More rows than this are worth a block of floats.
constexpr int kDirectHeadRows = 12;

// What is multiplied with a block: sums[r][columns] (+)= x[r][count] * block[count][columns].
struct HeadTile {
  const float* const* x;
  float* sums;
  size_t sums_stride;
  int count, columns;
  bool fresh;
};

// acc[r] += x[r][i] * row. What there is less of is held in registers while the other passes by.
template <int R, int V, class Number>
HEADRACE_INLINE void multiply_add(Floats (&acc)[R][V], const float* const (&x)[R], int i,
                                  const Number* row) {
  if constexpr (R <= V) {
    Floats factor[R];
    for (int r = 0; r < R; r++) factor[r] = splat(x[r][i]);
    for (int v = 0; v < V; v++) {
      const Floats w = load(row + v * kLanes);
      for (int r = 0; r < R; r++) acc[r][v] = fma(w, factor[r], acc[r][v]);
    }
  } else {
    Floats w[V];
    for (int v = 0; v < V; v++) w[v] = load(row + v * kLanes);
    for (int r = 0; r < R; r++) {
      const Floats factor = splat(x[r][i]);
      for (int v = 0; v < V; v++) acc[r][v] = fma(w[v], factor, acc[r][v]);
    }
  }
}

// `ahead`: bytes that are read later, as many as these.
template <int R, class Number>
__attribute__((noinline)) void head_rows(const Number* block, const HeadTile& t, int first,
                                         const uint8_t* ahead) {
  constexpr int V = R <= 3 && 4 * kLanes <= kBlock ? 4 : 2;
  const float* x[R];
  for (int r = 0; r < R; r++) x[r] = t.x[first + r];
  float* sums = t.sums + static_cast<size_t>(first) * t.sums_stride;
  for (int c = 0; c < t.columns; c += V * kLanes) {
    Floats acc[R][V];
    for (int r = 0; r < R; r++) {
      const float* from = sums + static_cast<size_t>(r) * t.sums_stride + c;
      for (int v = 0; v < V; v++) acc[r][v] = t.fresh ? Floats{} : load(from + v * kLanes);
    }
    const Number* row = block + c;
    for (int i = 0; i < t.count; i++, row += t.columns) {
      if constexpr (sizeof(Number) < sizeof(float)) {
        prefetch(ahead);
        ahead += V * kLanes * static_cast<int>(sizeof(Number));
      }
      multiply_add<R, V>(acc, x, i, row);
    }
    for (int r = 0; r < R; r++) {
      float* to = sums + static_cast<size_t>(r) * t.sums_stride + c;
      for (int v = 0; v < V; v++) store(to + v * kLanes, acc[r][v]);
    }
  }
}

// As few tiles as hold the rows, of nearly the same size: one with a single row would wait for its
// own sums.
template <class Number>
void all_head_rows(const Number* block, const HeadTile& t, int rows, const uint8_t* ahead) {
  const int tiles = (rows + kHeadRows - 1) / kHeadRows;
  for (int i = 0, first = 0; i < tiles; i++) {
    const int count = (rows - first) / (tiles - i);
    if (count == 6) head_rows<6>(block, t, first, ahead);
    if (count == 5) head_rows<5>(block, t, first, ahead);
    if (count == 4) head_rows<4>(block, t, first, ahead);
    if (count == 3) head_rows<3>(block, t, first, ahead);
    if (count == 2) head_rows<2>(block, t, first, ahead);
    if (count == 1) head_rows<1>(block, t, first, ahead);
    first += count;
  }
}

template <class Number>
void multiply_block(const Number* block, const HeadTile& t, int rows, const uint8_t* ahead,
                    float* expanded) {
  if (rows <= kDirectHeadRows) return all_head_rows(block, t, rows, ahead);
  for (int i = 0; i < t.count * t.columns; i += 2 * kLanes) {
    prefetch(ahead + i * static_cast<int>(sizeof(Number)));
    store(expanded + i, load(block + i));
    store(expanded + i + kLanes, load(block + i + kLanes));
  }
  all_head_rows(expanded, t, rows, nullptr);
}

// Keys or values: `bytes` points at those of one block.
inline void multiply_cached(CacheKind cache, const uint8_t* bytes, const HeadTile& t, int rows,
                            const uint8_t* ahead, float* expanded) {
  if (cache == CacheKind::bf16) {
    multiply_block(reinterpret_cast<const Bf16*>(bytes), t, rows, ahead, expanded);
  } else {
    multiply_block(reinterpret_cast<const int8_t*>(bytes), t, rows, ahead, expanded);
  }
}

struct FloatAttention {
  static constexpr auto head_bytes = headrace::head_bytes;
  static constexpr auto put_key = headrace::put_key;
  static constexpr auto put_value = headrace::put_value;
  static constexpr auto value_scales = headrace::value_scales;

  static size_t attention_scratch_bytes(int width) {
    return kBlock * static_cast<size_t>(width) * sizeof(float);
  }

  static void scores(CacheKind cache, const Chunk& chunk, int width, const uint8_t* const* queries,
                     int rows, float* out, uint8_t* rest, CachePrefetch& ahead) {
    const float* x[kQueryRows];
    for (int r = 0; r < rows; r++) x[r] = reinterpret_cast<const float*>(queries[r]);
    for (int b = 0; b < chunk.num_blocks; b++) {
      const uint8_t* keys = chunk.blocks[b];
      float* sums = out + (chunk.first_block + b) * kBlock;
      multiply_cached(cache, keys, {x, sums, kChunk, width, kBlock, true}, rows, ahead.piece(),
                      reinterpret_cast<float*>(rest));
      if (cache == CacheKind::i8) scale_scores(key_scales(keys, width), rows, sums);
    }
  }

  static void weigh(CacheKind cache, const Chunk& chunk, int width, const float* p, int rows,
                    float* out, size_t out_stride, uint8_t* rest, CachePrefetch& ahead) {
    const float* x[kQueryRows];
    for (int b = 0; b < chunk.num_blocks; b++) {
      const int first = (chunk.first_block + b) * kBlock;
      const int keys = chunk.num_keys - first < kBlock ? chunk.num_keys - first : kBlock;
      for (int r = 0; r < rows; r++) x[r] = p + r * kChunk + first;
      multiply_cached(cache, chunk.blocks[b] + values_place(cache, width),
                      {x, out, out_stride, keys, width, b == 0}, rows, ahead.piece(),
                      reinterpret_cast<float*>(rest));
    }
  }

 private:
  static void scale_scores(const float* scales, int rows, float* scores) {
    for (int r = 0; r < rows; r++) {
      for (int c = 0; c < kBlock; c += kLanes) {
        float* s = scores + r * kChunk + c;
        store(s, load(s) * load(scales + c));
      }
    }
  }
};

}  // namespace
}  // namespace headrace
