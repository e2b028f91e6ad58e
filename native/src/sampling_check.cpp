// Looks at every number that says how to sample, before anything is computed.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampling.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& why) {
  throw std::invalid_argument(std::string("sampling.") + name + ": " + why);
}

template <class T, class Valid>
void check_rows(const char* name, const T* values, int num_rows, const char* range, Valid&& valid) {
  if (!values && num_rows) refuse(name, "is missing");
  for (int r = 0; r < num_rows; r++) {
    if (!valid(values[r])) refuse(name, std::to_string(values[r]) + " is not " + range);
  }
}

void check_edits(const SamplingInput& in, int num_rows, int vocab_size) {
  if (!in.edit_begins) return;
  if (in.edit_begins[0] != 0) refuse("edits", "do not begin at 0");
  for (int r = 0; r < num_rows; r++) {
    if (in.edit_begins[r + 1] < in.edit_begins[r]) refuse("edits", "do not rise from row to row");
  }
  const int32_t count = in.edit_begins[num_rows];
  check_rows("edits", in.edit_ids, count, "a token",
             [=](int32_t id) { return id >= 0 && id < vocab_size; });
  check_rows("edits", in.edit_repetitions, count, "a positive repetition penalty",
             [](float x) { return x > 0 && std::isfinite(x); });
  check_rows("edits", in.edit_terms, count, "a term to add",
             [](float x) { return x < std::numeric_limits<float>::infinity(); });
}

}  // namespace

void check_sampling(const SamplingInput& in, int num_rows, int vocab_size, int max_top) {
  check_rows("temperatures", in.temperature, num_rows, "0 or more",
             [](double x) { return x >= 0 && std::isfinite(x); });
  check_rows("top_p", in.top_p, num_rows, "over 0 and at most 1",
             [](double x) { return x > 0 && x <= 1; });
  check_rows("min_p", in.min_p, num_rows, "between 0 and 1",
             [](double x) { return x >= 0 && x <= 1; });
  check_rows("uniforms", in.uniform, num_rows, "from 0 to below 1",
             [](double x) { return x >= 0 && x < 1; });
  check_rows("top_k", in.top_k, num_rows, "0 or more", [](int32_t x) { return x >= 0; });
  check_rows("num_top", in.num_top, num_rows, "-1 or a number of tokens",
             [=](int32_t x) { return x >= -1 && x <= max_top && x <= vocab_size; });
  check_rows("targets", in.target, num_rows, "-1 or a token",
             [=](int32_t x) { return x >= -1 && x < vocab_size; });
  check_edits(in, num_rows, vocab_size);
}

}  // namespace headrace
