// The largest logits of each row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

struct Logits {
  const float* values;  // [num_rows][width]
  int num_rows, width;
  const float* row(int i) const {
    return values + static_cast<size_t>(i) * static_cast<size_t>(width);
  }
};

// ids and values: [num_rows][top], largest first, the lowest id first among equals; a NaN counts as
// minus infinity. top: 1 to width.
void select_top(const Logits& logits, int top, int num_threads, int32_t* ids, float* values);

}  // namespace headrace
