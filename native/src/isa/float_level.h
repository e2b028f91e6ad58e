// A level with float operands: everything but the int8 product is the same for every vector width.
#pragma once

#include "attention.h"
#include "float_mm.h"
#include "int16_groups.h"
#include "int16_mm.h"
#include "int8_mm.h"

namespace headrace {
namespace {

constexpr int kDirectRows = 12;  // up to here a tile reads packed numbers, beyond it expands them
constexpr int kRowBlock = 192;   // rows whose sums wait while the panel goes by
constexpr int kDepth = 192;      // rows of a panel expanded at a time: 24 KiB

// Asks for k numbers of each row of the tile after t, of which `rows` are left.
inline void fetch_rows(const Tile& t, int rows, int k) {
  for (int r = 0; r < kTileRows && r < rows; r++) {
    const float* row = t.a + static_cast<size_t>(kTileRows + r) * t.a_stride;
    for (int i = 0; i < k; i += 16) __builtin_prefetch(row + i, 0, 3);
  }
}

// Hands the sums over, and asks for the lines that the next rows' will go to.
template <class Sink>
void finish(const Sink& sink, int first, int rows, float* sums) {
  for (int r = 0; r < rows; r += kTileRows) {
    const int count = rows - r < kTileRows ? rows - r : kTileRows;
    for (int i = r + count; i < r + 2 * kTileRows && i < rows; i++) sink.fetch(first + i);
    sink(first + r, count, sums + r * kPanel);
  }
}

// Rows [0, rows) of t over a whole panel.
template <class Source>
void multiply_source(const Source& source, const Tile& t, int rows, int k, float* expanded) {
  if (rows <= kDirectRows) return tile(source, t, rows, kPanel, 0, k, true);
  for (int k0 = 0; k0 < k; k0 += kDepth) {
    const int k1 = k0 + kDepth < k ? k0 + kDepth : k;
    expand(source, kPanel, k0, k1, expanded);
    const PlainSource<float> floats{expanded, kPanel};
    Tile part = t;
    part.a += k0;
    for (int left = rows; left > 0; left -= kTileRows) {
      fetch_rows(part, left - kTileRows, k1 - k0);
      tile(floats, part, left < kTileRows ? left : kTileRows, kPanel, 0, k1 - k0, k0 == 0);
      part.a += kTileRows * part.a_stride;
      part.sums += kTileRows * part.sums_stride;
    }
  }
}

inline void multiply_bf16(const Matrix& m, const uint8_t* panel, const Operand& a, int first,
                          int rows, float* sums, float* expanded) {
  const uint8_t* data = a.data + static_cast<size_t>(first) * a.row_bytes;
  const Tile t{reinterpret_cast<const float*>(data), a.row_bytes / sizeof(float), sums, kPanel};
  const PlainSource<Bf16, true> source{reinterpret_cast<const Bf16*>(panel), kPanel};
  multiply_source(source, t, rows, round_up(m.k, kPad), expanded);
}

template <class Queries>
void gather_queries(const Queries& queries, int rows, int width, float* out) {
  for (int r = 0; r < rows; r++) {
    memcpy(out + static_cast<size_t>(r) * static_cast<size_t>(width), queries[r],
           static_cast<size_t>(width) * sizeof(float));
  }
}

// Products with one block of the cache: straight from it for few rows, else from floats.
template <class Number>
void multiply_block(const Number* block, int stride, const Tile& t, int rows, int k, bool fresh,
                    float* expanded) {
  const PlainSource<Number> source{block, static_cast<size_t>(stride)};
  if (rows <= kTileRows) return tile(source, t, rows, stride, 0, k, fresh);
  expand(source, stride, 0, k, expanded);
  const PlainSource<float> floats{expanded, static_cast<size_t>(stride)};
  tile(floats, t, rows, stride, 0, k, fresh);
}

struct FloatLevel {
  using Wide = float;
  static constexpr int kFirstOperandRows = 1;
  static void begin() {}
  static void end() {}
  static OperandKind operand_kind(WeightKind kind) {
    if (kind == WeightKind::i8a8) return OperandKind::int8;
    return kind == WeightKind::bf16 ? OperandKind::wide : OperandKind::int16;
  }
  static constexpr auto panel_bytes = headrace::panel_bytes;
  static constexpr auto pack = headrace::pack;
  static constexpr auto read_column = headrace::read_column;
  static constexpr auto head_bytes = headrace::head_bytes;
  static constexpr auto put_key = headrace::put_key;
  static constexpr auto put_value = headrace::put_value;
  static constexpr auto value_scales = headrace::value_scales;

  static size_t scratch_bytes(int /*max_k*/, int width) {
    const size_t product = (kRowBlock + kDepth) * kPanel * sizeof(float);
    const size_t heads = 2 * kBlock * static_cast<size_t>(width) * sizeof(float);
    return product > heads ? product : heads;
  }

  template <class Sink>
  static void multiply(const Matrix& m, const uint8_t* panel, const Operand& a, int begin, int end,
                       const uint8_t* /*next*/, uint8_t* scratch, const Sink& sink) {
    float* sums = reinterpret_cast<float*>(scratch);
    float* expanded = sums + kRowBlock * kPanel;
    for (int first = begin; first < end; first += kRowBlock) {
      const int rows = end - first < kRowBlock ? end - first : kRowBlock;
      switch (operand_kind(m.kind)) {
        case OperandKind::int8:
          multiply_int8(m, panel, a, first, rows, sums);
          break;
        case OperandKind::int16:
          if (m.kind == WeightKind::i8) {
            multiply_int16(m, panel, a, first, rows, sums);
          } else {
            multiply_groups(m, panel, a, first, rows, sums, reinterpret_cast<int16_t*>(expanded));
          }
          break;
        case OperandKind::wide:
          multiply_bf16(m, panel, a, first, rows, sums, expanded);
          break;
      }
      finish(sink, first, rows, sums);
    }
  }

  static void scores(CacheKind cache, const Chunk& chunk, int width, const uint8_t* const* queries,
                     int rows, float* out, uint8_t* rest, CachePrefetch& ahead) {
    float* q = reinterpret_cast<float*>(rest);
    float* expanded = q + kQueryRows * width;
    gather_queries(queries, rows, width, q);
    for (int b = 0; b < chunk.num_blocks; b++) {
      const uint8_t* keys = chunk.blocks[b];
      const Tile t{q, static_cast<size_t>(width), out + (chunk.first_block + b) * kBlock, kChunk};
      ahead.some(16);
      if (cache == CacheKind::bf16) {
        multiply_block(reinterpret_cast<const Bf16*>(keys), kBlock, t, rows, width, true, expanded);
        continue;
      }
      multiply_block(reinterpret_cast<const int8_t*>(keys), kBlock, t, rows, width, true, expanded);
      const float* scales = key_scales(keys, width);
      for (int r = 0; r < rows; r++) {
        for (int c = 0; c < kBlock; c += kLanes) {
          float* s = t.sums + static_cast<size_t>(r) * kChunk + c;
          store(s, load(s) * load(scales + c));
        }
      }
    }
  }

  static void weigh(CacheKind cache, const Chunk& chunk, int width, const float* p, int rows,
                    float* out, size_t out_stride, uint8_t* rest, CachePrefetch& ahead) {
    float* expanded = reinterpret_cast<float*>(rest);
    for (int b = 0; b < chunk.num_blocks; b++) {
      const int first = (chunk.first_block + b) * kBlock;
      const int keys = chunk.num_keys - first < kBlock ? chunk.num_keys - first : kBlock;
      const Tile t{p + first, kChunk, out, out_stride};
      const size_t values = static_cast<size_t>(kBlock) * static_cast<size_t>(width);
      ahead.some(16);
      if (cache == CacheKind::bf16) {
        const Bf16* block = reinterpret_cast<const Bf16*>(chunk.blocks[b]) + values;
        multiply_block(block, width, t, rows, keys, b == 0, expanded);
      } else {
        const int8_t* block = reinterpret_cast<const int8_t*>(chunk.blocks[b]) + values;
        multiply_block(block, width, t, rows, keys, b == 0, expanded);
      }
    }
  }
};

}  // namespace
}  // namespace headrace
