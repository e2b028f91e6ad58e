// How one step's attention is cut into items for the threads. Knows no kernels and no numbers but
// positions: whatever the cut, the results are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace headrace {

// Tokens of one sequence that follow one another and whose attention is wanted.
struct Segment {
  const int32_t* block_table;
  int first_token;  // in the batch
  int num_tokens;
  int num_computed;  // position of the first token
  int first_row;     // where its output goes
};

struct AttentionWork {
  AttentionItem item;  // first_token: the row of the output
  int token_shift;     // batch index of a token, less its row in the output
  int64_t cost;
  int order;
};

// A row of the output whose chunks are computed apart, to be merged.
struct SplitRow {
  int row, head;
  const float* partials;
  size_t stride;
  int count;
};

struct PlanShape {
  int num_heads, num_kv_heads;
  size_t row_floats;  // of a partial
  int num_threads;
};

class AttentionPlan {
 public:
  // Room for this much once and for all. `max_partials`: rows of partials that may be used.
  AttentionPlan(const PlanShape&, int window, size_t max_items, size_t max_partials);

  // apart: every chunk is an item and every row a SplitRow; needs a partial for each row and chunk.
  // Otherwise items are split where one of them would keep the other threads waiting.
  void build(std::span<const Segment>, float* partials, bool apart);

  int window() const { return window_; }
  std::span<const AttentionWork> items() const { return dealt_; }
  std::span<const SplitRow> splits() const { return splits_; }

 private:
  int64_t cost_of(const AttentionItem&) const;
  void add_whole(const Segment&);
  void split(const AttentionWork&, float* partials);
  void deal();

  PlanShape shape_;
  int window_;
  size_t max_items_, max_partials_, used_partials_ = 0;
  std::vector<AttentionWork> whole_, items_, dealt_;
  std::vector<SplitRow> splits_;
};

}  // namespace headrace
