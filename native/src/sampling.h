// Chooses a token from a row of logits. What is chosen depends on that row alone: one thread works
// on it, in one fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "candidates.h"
#include "kernels.h"

namespace headrace {

// What is wanted of each row, [num_rows] each.
struct SamplingInput {
  const double* temperature = nullptr;  // 0: the likeliest token
  const double* top_p = nullptr;        // 1: off
  const double* min_p = nullptr;        // 0: off
  const double* uniform = nullptr;      // the random number, in [0, 1)
  const int32_t* top_k = nullptr;       // 0: off
  const int32_t* num_top = nullptr;     // likeliest tokens to name; -1: no log-probabilities at all
  const int32_t* target = nullptr;      // take this token; -1: choose one
  // Changes of single logits before the choice, row r's from edit_begins[r] to edit_begins[r + 1],
  // in this order: x = (x > 0 ? x / repetition : x * repetition) + term.
  const int32_t* edit_begins = nullptr;  // [num_rows + 1]; null: none
  const int32_t* edit_ids = nullptr;
  const float* edit_repetitions = nullptr;
  const float* edit_terms = nullptr;
};

// std::invalid_argument naming what is wrong; max_top: the room for num_top.
void check_sampling(const SamplingInput&, int num_rows, int vocab_size, int max_top);

// Log-probabilities are the model's own: before edits, temperature and cuts.
struct SamplingOutput {
  int32_t* token_ids = nullptr;   // [num_rows]; -1 where none is possible or a logit is inf or NaN
  float* logprobs = nullptr;      // [num_rows], of the token, where num_top is not -1
  int max_top = 0;                // the largest num_top, or 0
  int32_t* top_ids = nullptr;     // [num_rows][max_top], likeliest first, the lowest id first among
  float* top_logprobs = nullptr;  // equals; -1 and 0 beyond a row's num_top
};

// One row's logits in a step. Those that the mask does not allow become minus infinity.
struct RowLogits {
  float* values;            // [vocab_size]
  const HeadPanel* panels;  // the largest of each, masked
  const uint32_t* mask;     // null: all are allowed
  float log_sum_exp;        // masked; where log-probabilities are wanted
};

// One thread's room for a row.
class RowSampler {
 public:
  RowSampler(const Kernels&, int vocab_size);
  void sample(const SamplingInput&, int row, const RowLogits&, const SamplingOutput&);

 private:
  struct Limits;

  void edit(const SamplingInput&, int row, float* logits);
  void undo(const SamplingInput&, int row, float* logits);
  void update_maximum(const float* logits, int32_t id, float before);
  void name_likeliest(const RowLogits&, int count, int max_top, int32_t* ids, float* logprobs);
  int32_t choose(const float* logits, const Limits&, double uniform);
  int32_t first_of(const float* logits, float value) const;  // -1: it is not there
  double weigh_all(const float* logits, const Scaling&);
  int32_t draw_from_all(const float* logits, const Scaling&, double uniform);
  float top_k_floor(size_t k);

  const Kernels& kernels_;
  int vocab_size_;
  std::vector<float> maxima_, other_maxima_;  // of each panel
  std::vector<float> chunk_sums_;
  std::vector<float> before_;  // logits before each edit
  Candidates candidates_;
};

}  // namespace headrace
