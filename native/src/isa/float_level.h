// A level with float operands: everything but the int8 product is the same for every vector width.
#pragma once

#include "float_attention.h"
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

struct FloatLevel : FloatAttention {
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

  static size_t scratch_bytes(int /*max_k*/, int width) {
    const size_t product = (kRowBlock + kDepth) * kPanel * sizeof(float);
    const size_t heads = attention_scratch_bytes(width);
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
};

}  // namespace
}  // namespace headrace
