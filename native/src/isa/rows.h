// What happens to one row between products: norms, quantisation, the rotary embedding.
#pragma once

#include "../kernels.h"
#include "int16_rows.h"
#include "vec.h"

namespace headrace {
namespace {

constexpr int kMaxHead = 1024;  // the widest head a kernel takes

// 1 / rms(x)
inline float inverse_rms(const float* x, int k, float eps) {
  Floats squares = {};
  for (int i = 0; i < k; i += kLanes) {
    const Floats v = load_first(x + i, k - i);
    squares = fma(v, v, squares);
  }
  return 1.f / __builtin_sqrtf(sum(squares) / static_cast<float>(k) + eps);
}

// Numbers come from value(i), i a multiple of kLanes; zeros are written up to round_up(k, kPad).
// A row that holds a NaN or an infinity gets a scale of NaN, so that products with it are NaN.
template <class Value>
HEADRACE_INLINE float quantise_values(Value value, int k, int8_t* out) {
  const float most = peak_of(value, k);
  const float inverse = most > 0 ? 127.f / most : 0.f;
  for (int i = 0; i < k; i += kLanes) store_as(out + i, to_bytes(value(i) * inverse));
  const int end = round_up(k, kLanes);
  memset(out + end, 0, static_cast<size_t>(round_up(k, kPad) - end));
  return most / 127.f;
}

inline void quantise(const float* x, int k, int8_t* out, float* scale) {
  *scale = quantise_values([=](int i) { return load_first(x + i, k - i); }, k, out);
}
inline void quantise(const float* x, int k, OperandKind kind, void* out, float* scale) {
  if (kind == OperandKind::int8) return quantise(x, k, static_cast<int8_t*>(out), scale);
  quantise_to_int16([=](int i) { return load_first(x + i, k - i); }, k, static_cast<uint8_t*>(out));
}

template <class Wide>
void norm(const float* x, const float* weight, int k, float eps, OperandKind kind, void* out,
          float* scale) {
  const float r = inverse_rms(x, k, eps);
  const auto value = [=](int i) {
    return load_first(x + i, k - i) * r * load_first(weight + i, k - i);
  };
  if (kind == OperandKind::int16) return quantise_to_int16(value, k, static_cast<uint8_t*>(out));
  if (kind == OperandKind::int8) {
    *scale = quantise_values(value, k, static_cast<int8_t*>(out));
    return;
  }
  Wide* wide = static_cast<Wide*>(out);
  for (int i = 0; i < k; i += kLanes) store(wide + i, value(i));
  for (int i = round_up(k, kLanes); i < round_up(k, kPad); i += kLanes) store(wide + i, Floats{});
}

inline void add_norm(float* x, const float* y, const float* weight, int k, float eps) {
  const float r = inverse_rms(y, k, eps);
  for (int i = 0; i < k; i += kLanes) {
    const int n = k - i;
    const Floats term = load_first(y + i, n) * r * load_first(weight + i, n);
    store_first(x + i, load_first(x + i, n) + term, n);
  }
}

// Norm and rotation of a head into out, zeros from dim to round_up(dim, kPad).
template <class Wide>
void transform_head(const float* x, const HeadTransform& t, Wide* out) {
  const int half = t.dim / 2;
  const float r = t.norm ? inverse_rms(x, t.dim, t.eps) : 1.f;
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i;
    Floats low = load_first(x + i, n), high = load_first(x + half + i, n);
    if (t.norm) {
      low = low * r * load_first(t.norm + i, n);
      high = high * r * load_first(t.norm + half + i, n);
    }
    const Floats cos = load_first(t.cos + i, n), sin = load_first(t.sin + i, n);
    store_first(out + i, low * cos - high * sin, n);
    store_first(out + half + i, fma(low, sin, high * cos), n);
  }
  const int width = round_up(t.dim, kPad);
  memset(out + t.dim, 0, static_cast<size_t>(width - t.dim) * sizeof(Wide));
}

template <class Wide>
void rotate_query(const float* q, const HeadTransform& t, void* out) {
  transform_head(q, t, static_cast<Wide*>(out));
}

}  // namespace
}  // namespace headrace
