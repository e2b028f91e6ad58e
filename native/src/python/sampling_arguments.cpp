#include "sampling_arguments.h"

#include <algorithm>

namespace headrace {
namespace {

template <class T>
std::vector<T> read(nb::handle from, const char* name, int64_t size, const char* of = "sampling.") {
  const auto argument = array_argument<T>(from.attr(name), std::string(of) + name, {size});
  return {argument.values.begin(), argument.values.end()};
}

}  // namespace

SamplingArguments::SamplingArguments(nb::handle sampling, size_t num_rows) {
  const auto rows = static_cast<int64_t>(num_rows);
  temperature = read<double>(sampling, "temperatures", rows);
  top_p = read<double>(sampling, "top_p", rows);
  min_p = read<double>(sampling, "min_p", rows);
  uniform = read<double>(sampling, "uniforms", rows);
  top_k = read<int32_t>(sampling, "top_k", rows);
  num_top = read<int32_t>(sampling, "num_top", rows);
  target = read<int32_t>(sampling, "targets", rows);
  const nb::object edits = sampling.attr("edits");
  if (edits.is_none()) return;
  constexpr const char* kEdits = "sampling.edits.";
  edit_begins = read<int32_t>(edits, "begins", rows + 1, kEdits);
  edit_ids = read<int32_t>(edits, "token_ids", edit_begins.back(), kEdits);
  edit_repetitions = read<float>(edits, "repetitions", edit_begins.back(), kEdits);
  edit_terms = read<float>(edits, "terms", edit_begins.back(), kEdits);
}

int SamplingArguments::max_top() const {
  return num_top.empty() ? 0 : std::max(0, *std::max_element(num_top.begin(), num_top.end()));
}

bool SamplingArguments::wants_logprobs() const {
  return std::any_of(num_top.begin(), num_top.end(), [](int32_t n) { return n >= 0; });
}

SamplingInput SamplingArguments::input() const {
  SamplingInput input;
  input.temperature = temperature.data();
  input.top_p = top_p.data();
  input.min_p = min_p.data();
  input.uniform = uniform.data();
  input.top_k = top_k.data();
  input.num_top = num_top.data();
  input.target = target.data();
  if (edit_begins.empty()) return input;
  input.edit_begins = edit_begins.data();
  input.edit_ids = edit_ids.data();
  input.edit_repetitions = edit_repetitions.data();
  input.edit_terms = edit_terms.data();
  return input;
}

}  // namespace headrace
