// What becomes of the sums of a product. A level multiplies, this finishes.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace headrace {
namespace {

HEADRACE_INLINE Floats activate(Activation activation, Floats x) {
  if (activation == Activation::silu) return x / (exp(-x) + 1.f);
  // gelu by tanh: x/2 * (1 + tanh(u)) = x / (1 + exp(-2u))
  const Floats u = fma(x * x * x, splat(0.044715f), x) * 1.59576912f;
  return x / (exp(-u) + 1.f);
}

template <class Wide>
HEADRACE_INLINE void store_row(const Rows& rows, int row, size_t column, Floats v) {
  uint8_t* data = rows.data + static_cast<size_t>(row) * rows.row_bytes;
  if (rows.wide) {
    store(reinterpret_cast<Wide*>(data) + column, v);
  } else {
    store(reinterpret_cast<float*>(data) + column, v);
  }
}

template <class Wide>
void finish_glu(const Epilogue& e, int panel, int row, const float* sums) {
  for (int c = 0; c < kPanel / 2; c += kLanes) {
    const Floats v = activate(e.activation, load(sums + c)) * load(sums + kPanel / 2 + c);
    store_row<Wide>(e.rows, row, static_cast<size_t>(panel) * (kPanel / 2) + static_cast<size_t>(c),
                    v);
  }
}

// Columns of this panel that exist and are allowed, one bit each.
inline uint32_t allowed_columns(const Epilogue& e, const Matrix& m, int panel, int row) {
  const int left = m.n - panel * kPanel;
  const uint32_t real = left >= kPanel ? ~0u : (1u << left) - 1;
  const size_t place =
      static_cast<size_t>(row) * static_cast<size_t>(m.num_panels()) + static_cast<size_t>(panel);
  return e.masks ? e.masks[place] & real : real;
}

// The lowest place of `value` among kPanel numbers; 0 where it is not there.
HEADRACE_INLINE int first_place(const float* numbers, float value) {
  Ints places = Ints{} + kPanel;
  Ints place;
  for (int i = 0; i < kLanes; i++) place[i] = i;
  for (int c = 0; c < kPanel; c += kLanes, place += kLanes) {
    const Ints found = load(numbers + c) == value ? place : Ints{} + kPanel;
    places = found < places ? found : places;
  }
  int32_t lanes[kLanes];
  store_as(lanes, places);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; i++) {
      lanes[i] = lanes[i] < lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0] % kPanel;
}

// Of kPanel numbers.
HEADRACE_INLINE float largest_or_nan(const float* numbers) {
  Floats peak = splat(-kInfinity);
  Ints unordered = {};
  for (int c = 0; c < kPanel; c += kLanes) {
    const Floats v = load(numbers + c);
    peak = max(v, peak);  // a NaN would be lost here
    unordered |= v != v;
  }
  return any(unordered) ? __builtin_nanf("") : largest(peak);
}

inline void finish_head(const Epilogue& e, const Matrix& m, int panel, int row, float* sums) {
  const int left = m.n - panel * kPanel;
  const int columns = left < kPanel ? left : kPanel;
  if (e.out) {
    memcpy(e.out + static_cast<size_t>(row) * e.out_stride + static_cast<size_t>(panel) * kPanel,
           sums, static_cast<size_t>(columns) * sizeof(float));
  }
  const uint32_t allowed = allowed_columns(e, m, panel, row);
  for (int c = 0; c < kPanel && allowed != ~0u; c++) {
    if (!(allowed >> c & 1)) sums[c] = -kInfinity;
  }
  const float most = largest_or_nan(sums);
  HeadPanel& out = e.heads[static_cast<size_t>(row) * static_cast<size_t>(m.num_panels()) +
                           static_cast<size_t>(panel)];
  out.max = most;
  out.argmax = panel * kPanel + first_place(sums, most);
  out.sum_exp = 0;
  if (!e.want_sum_exp || most == -kInfinity) return;
  Floats total = {};
  for (int c = 0; c < kPanel; c += kLanes) total += exp(load(sums + c) - most);
  out.sum_exp = sum(total);
}

// `sums`: kPanel numbers, scaled; they are changed.
template <class Wide>
void finish_row(const Epilogue& e, const Matrix& m, int panel, int row, float* sums) {
  const size_t first = static_cast<size_t>(panel) * kPanel;
  if (e.bias) {
    for (int c = 0; c < kPanel; c += kLanes) {
      store(sums + c, load(sums + c) + load(e.bias + first + c));
    }
  }
  if (e.kind == Epilogue::Kind::glu) return finish_glu<Wide>(e, panel, row, sums);
  if (e.kind == Epilogue::Kind::head) return finish_head(e, m, panel, row, sums);
  float* out = e.out + static_cast<size_t>(row) * e.out_stride + first;
  if (e.kind == Epilogue::Kind::store) {
    memcpy(out, sums, kPanel * sizeof(float));
    return;
  }
  for (int c = 0; c < kPanel; c += kLanes) store(out + c, load(out + c) + load(sums + c));
}

// Finishes the rows of one panel. Fetching the lines that a row will write while its sums are still
// being made keeps the stores from waiting for memory when there are many rows.
template <class Wide>
struct Finish {
  const Epilogue& e;
  const Matrix& m;
  int panel;

  void operator()(int first, int count, float* sums) const {
    for (int r = 0; r < count; r++) finish_row<Wide>(e, m, panel, first + r, sums + r * kPanel);
  }

  HEADRACE_INLINE void fetch(int row) const {
    if (e.kind == Epilogue::Kind::head) return;
    if (e.kind == Epilogue::Kind::glu) {
      const int column_bytes = e.rows.wide ? static_cast<int>(sizeof(Wide)) : 4;
      __builtin_prefetch(e.rows.data + static_cast<size_t>(row) * e.rows.row_bytes +
                             panel * (kPanel / 2 * column_bytes),
                         1, 2);
      return;
    }
    const float* out = e.out + static_cast<size_t>(row) * e.out_stride + panel * kPanel;
    __builtin_prefetch(out, 1, 2);
    __builtin_prefetch(out + kPanel / 2, 1, 2);
  }
};

// Level::multiply(matrix, panel bytes, operand, begin, end, next, scratch, sink) calls
// sink(first_row, num_rows, float* sums) until every row of [begin, end) was handed over once;
// sums: [num_rows][kPanel], with the column's and the row's scales applied. It may call
// sink.fetch(row) some time before.
template <class Level>
void product(const Matrix& m, int panel, const Operand& a, int begin, int end, const Epilogue& e,
             const uint8_t* next, uint8_t* scratch) {
  const uint8_t* data = m.panels + static_cast<size_t>(panel) * m.panel_bytes;
  Level::multiply(m, data, a, begin, end, next, scratch, Finish<typename Level::Wide>{e, m, panel});
}

}  // namespace
}  // namespace headrace
