// Products of int8 rows with int8 columns. The sums are exact integers, so their order is free.
#pragma once

#include "float_panels.h"

namespace headrace {
namespace {

inline size_t int8_bytes(int /*max_k*/) { return 0; }

// One row against a panel [k / 4][32][4].
inline void dot_row(const int8_t* quants, const int8_t* row, int k, int32_t* sums) {
  memset(sums, 0, kPanel * sizeof(int32_t));
  for (int i = 0; i < k; i += 4) {
    for (int c = 0; c < kPanel; c++) {
      const int8_t* w = quants + static_cast<size_t>(i) * kPanel + c * 4;
      sums[c] += w[0] * row[i] + w[1] * row[i + 1] + w[2] * row[i + 2] + w[3] * row[i + 3];
    }
  }
}

// sums[rows][32] of rows [first, first + rows) of the operand, scaled.
inline void multiply_int8(const Matrix& m, const uint8_t* panel, const Operand& a, int first,
                          int rows, float* sums, uint8_t* /*scratch*/) {
  const PanelShape s = panel_shape(m.kind, m.k);
  const float* scales = reinterpret_cast<const float*>(panel);
  for (int r = 0; r < rows; r++) {
    alignas(64) int32_t exact[kPanel];
    const uint8_t* row = a.data + static_cast<size_t>(first + r) * a.row_bytes;
    dot_row(reinterpret_cast<const int8_t*>(panel + s.quants), reinterpret_cast<const int8_t*>(row),
            s.k, exact);
    for (int c = 0; c < kPanel; c += kLanes) {
      const Floats scale = load(scales + c) * a.scales[first + r];
      store(sums + r * kPanel + c,
            __builtin_convertvector(load_as<Ints>(exact + c), Floats) * scale);
    }
  }
}

}  // namespace
}  // namespace headrace
