// The weights of logits.
#pragma once

#include "vec.h"

namespace headrace {
namespace {

// A number's exponential depends on nothing but the number; what is not there weighs nothing.
inline float exponentials(const float* x, int n, float most, float scale, float* out) {
  const float factor = scale * kLog2E;
  Floats total = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats weights = exp2((load(x + i) - most) * factor);
    store(out + i, weights);
    total += weights;
  }
  if (i < n) {
    float lanes[kLanes];
    store(lanes, splat(-kInfinity));
    memcpy(lanes, x + i, static_cast<size_t>(n - i) * sizeof(float));
    const Floats weights = exp2((load(lanes) - most) * factor);
    store_first(out + i, weights, n - i);
    total += weights;
  }
  return sum(total);
}

}  // namespace
}  // namespace headrace
