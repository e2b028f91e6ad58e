// How a step samples, as Python says it.
#pragma once

#include <vector>

#include "arguments.h"
#include "sampling.h"

namespace headrace {

// Copied: the caller's arrays may change while the step runs, after they were checked.
struct SamplingArguments {
  std::vector<double> temperature, top_p, min_p, uniform;
  std::vector<int32_t> top_k, num_top, target, edit_begins, edit_ids;
  std::vector<float> edit_repetitions, edit_terms;

  // Reads the object's attributes; names of them in what is raised.
  SamplingArguments(nb::handle sampling, size_t num_rows);

  int max_top() const;
  bool wants_logprobs() const;
  SamplingInput input() const;
};

}  // namespace headrace
