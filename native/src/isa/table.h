// The table of a level, from the functions that all levels share and the few that it supplies.
#pragma once

#include "../kernels.h"
#include "attention.h"
#include "exponentials.h"
#include "product.h"
#include "rows.h"

namespace headrace {
namespace {

// Level supplies:
//   using Wide = float or Bf16; kIsa, kLayout, kFirstOperandRows; begin(), end();
//   operand_kind, panel_bytes, pack, read_column as in Kernels; multiply as product.h wants it;
//   head_bytes, put_key, put_value, scores, weigh, value_scales as attention.h wants them;
//   scratch_bytes(max_k, width): what multiply, and scores and weigh in `rest`, work in.
template <class Level>
size_t scratch_bytes(int max_k, int width) {
  const size_t bytes = attention_bytes(width) + Level::scratch_bytes(max_k, width);
  return (bytes + 63) / 64 * 64;
}

template <class Level>
constexpr Kernels make_table() {
  using Wide = typename Level::Wide;
  return {
      .isa = Level::kIsa,
      .layout = Level::kLayout,
      .wide_bytes = sizeof(Wide),
      .first_operand_rows = Level::kFirstOperandRows,
      .operand_kind = Level::operand_kind,
      .begin = Level::begin,
      .end = Level::end,
      .panel_bytes = Level::panel_bytes,
      .pack = Level::pack,
      .read_column = Level::read_column,
      .product = product<Level>,
      .norm = norm<Wide>,
      .add_norm = add_norm,
      .quantise = quantise,
      .rotate_query = rotate_query<Wide>,
      .head_bytes = Level::head_bytes,
      .store_key = store_key<Level>,
      .store_value = store_value<Level>,
      .attend = attend<Level>,
      .merge = merge<Wide>,
      .scratch_bytes = scratch_bytes<Level>,
      .exponentials = exponentials,
  };
}

}  // namespace
}  // namespace headrace
