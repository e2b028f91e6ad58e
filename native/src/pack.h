// Turns stored rows into what an entry holds: panels, bf16 rows or floats.
#pragma once

#include <span>
#include <vector>

#include "layout.h"
#include "weights.h"

namespace headrace {

// Fills `out`, which is zero. std::invalid_argument naming the entry when the parts do not fit it,
// cannot be stored that way, or hold a number that is not finite.
void pack(const Placed& placed, const std::vector<Stored>& parts, bool interleaved,
          const Kernels& kernels, int num_threads, std::span<uint8_t> out);

}  // namespace headrace
