// Looks at every number of a step before anything is written, then plans its attention.
#include <algorithm>
#include <stdexcept>

#include "model_state.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& why) {
  throw std::invalid_argument(std::string(name) + ": " + why);
}

std::string place(const char* what, int index) {
  return std::string(what) + " " + std::to_string(index) + " ";
}

void check_count(const char* name, int value, int least, int most) {
  if (value < least || value > most) {
    refuse(name, std::to_string(value) + " is not between " + std::to_string(least) + " and " +
                     std::to_string(most));
  }
}

void check_given(const char* name, const void* pointer, bool needed) {
  if (needed && !pointer) refuse(name, "is missing");
}

void check_rows(const StepInput& in) {
  for (int i = 0; i < in.num_rows; i++) {
    if (in.rows[i] < 0 || in.rows[i] >= in.num_tokens) {
      refuse("rows", std::to_string(in.rows[i]) + " is not one of " +
                         std::to_string(in.num_tokens) + " tokens");
    }
    if (i && in.rows[i] <= in.rows[i - 1]) refuse("rows", "are not rising");
  }
}

void check_masks(const StepInput& in, int vocab_size) {
  if (!in.masks) return;
  const int words = (vocab_size + 31) / 32;
  const uint32_t last = vocab_size % 32 ? (1u << vocab_size % 32) - 1 : ~0u;
  for (int i = 0; i < in.num_rows; i++) {
    const uint32_t* mask = in.masks + static_cast<size_t>(i) * static_cast<size_t>(words);
    const bool any = std::any_of(mask, mask + words - 1, [](uint32_t word) { return word != 0; });
    if (!any && !(mask[words - 1] & last)) refuse("masks", place("row", i) + "allows no token");
  }
}

}  // namespace

// What lies before every layer's window is never read.
int Model::State::first_block(int num_computed) const {
  return all_windows ? std::max(0, num_computed - largest_window + 1) / kBlock : 0;
}

void Model::State::check_blocks(const StepInput& in, int sequence) {
  const int computed = in.num_computed[sequence];
  const int end = (computed + in.num_new[sequence] + kBlock - 1) / kBlock;
  if (end > in.table_stride) {
    refuse("block_tables", place("sequence", sequence) + "needs " + std::to_string(end) +
                               " blocks, has " + std::to_string(in.table_stride));
  }
  const int32_t* table =
      in.block_tables + static_cast<size_t>(sequence) * static_cast<size_t>(in.table_stride);
  for (int b = first_block(computed); b < end; b++) {
    if (table[b] < 0 || table[b] >= options.num_blocks) {
      refuse("block_tables", place("sequence", sequence) + "has block " + std::to_string(table[b]) +
                                 " of " + std::to_string(options.num_blocks));
    }
    if (b < computed / kBlock) continue;
    uint32_t& writer = written[static_cast<size_t>(table[b])];
    if (writer == step_number) {
      refuse("block_tables", place("block", table[b]) + "would be written twice in one step");
    }
    writer = step_number;
  }
}

void Model::State::check_sequences(const StepInput& in) {
  int64_t total = 0;
  if (++step_number == 0) {  // the stamps of 2^32 steps ago
    std::fill(written.begin(), written.end(), 0);
    step_number = 1;
  }
  for (int s = 0; s < in.num_seqs; s++) {
    const int64_t count = in.num_new[s], computed = in.num_computed[s];
    if (count < 1) refuse("num_new", place("sequence", s) + "has no new token");
    if (computed < 0) refuse("num_computed", place("sequence", s) + "is negative");
    if (computed + count > spec.max_position) {
      refuse("num_computed",
             place("sequence", s) + "would pass max_position " + std::to_string(spec.max_position));
    }
    total += count;
    check_blocks(in, s);
  }
  if (total != in.num_tokens) {
    refuse("num_new", "adds up to " + std::to_string(total) + ", there are " +
                          std::to_string(in.num_tokens) + " tokens");
  }
}

void Model::State::check_sampling(const StepInput& in, const StepOutput& out) const {
  const SamplingOutput& to = out.sampling;
  headrace::check_sampling(*in.sampling, in.num_rows, spec.vocab_size, to.max_top);
  const int32_t* num_top = in.sampling->num_top;
  const bool any = std::any_of(num_top, num_top + in.num_rows, [](int32_t n) { return n >= 0; });
  check_given("sampling.token_ids", to.token_ids, in.num_rows > 0);
  check_given("log_sum_exp", out.log_sum_exp, any);
  check_given("logprobs", to.logprobs, any);
  check_given("top_ids", to.top_ids, to.max_top > 0);
  check_given("top_logprobs", to.top_logprobs, to.max_top > 0);
}

void Model::State::check(const StepInput& in, const StepOutput& out) {
  check_count("num_tokens", in.num_tokens, 1, options.max_tokens);
  check_count("num_seqs", in.num_seqs, 1, options.max_seqs);
  check_count("num_rows", in.num_rows, 0, std::min(options.max_rows, in.num_tokens));
  check_given("token_ids", in.token_ids, true);
  check_given("num_new", in.num_new, true);
  check_given("num_computed", in.num_computed, true);
  check_given("block_tables", in.block_tables, true);
  check_given("rows", in.rows, in.num_rows > 0);
  check_given("argmax", out.argmax, in.num_rows > 0);
  check_given("max", out.max, in.num_rows > 0);
  for (int i = 0; i < in.num_tokens; i++) {
    if (in.token_ids[i] < 0 || in.token_ids[i] >= spec.vocab_size) {
      refuse("token_ids", std::to_string(in.token_ids[i]) + " is not between 0 and " +
                              std::to_string(spec.vocab_size - 1));
    }
  }
  check_sequences(in);
  check_rows(in);
  check_masks(in, spec.vocab_size);
  if (in.sampling) check_sampling(in, out);
  for (size_t i = 0; i < ropes.size(); i++) {
    if (ropes[i].cos.empty())
      refuse("set_rope", place("table", static_cast<int>(i)) + "is not set");
  }
}

// Whether no sequence reads as computed what another one computes in this step.
bool Model::State::reads_no_new_block(const StepInput& in) const {
  for (int s = 0; s < in.num_seqs; s++) {
    const int32_t* table =
        in.block_tables + static_cast<size_t>(s) * static_cast<size_t>(in.table_stride);
    for (int b = first_block(in.num_computed[s]); b < in.num_computed[s] / kBlock; b++) {
      if (written[static_cast<size_t>(table[b])] == step_number) return false;
    }
  }
  return true;
}

void Model::State::plan(const StepInput& in, const StepOutput& out) {
  input = in;
  output = out;
  segments.clear();
  last_segments.clear();
  if (in.sampling) make_room_for_sampling();
  all_rows = in.num_rows == in.num_tokens;
  few = in.num_tokens <= kFewTokens && in.num_tokens * spec.hidden_size <= kFewNumbers;
  fuse_rope = all_rows && reads_no_new_block(in);
  int token = 0, row = 0;
  for (int s = 0; s < in.num_seqs; s++) {
    const int32_t* table =
        in.block_tables + static_cast<size_t>(s) * static_cast<size_t>(in.table_stride);
    segments.push_back({table, token, in.num_new[s], in.num_computed[s], token});
    fuse_rope &= in.num_new[s] <= kFewTokens && in.num_new[s] * group <= kQueryRows;
    for (int end = token + in.num_new[s], first = token; token < end; token++) {
      sequences[static_cast<size_t>(token)] = s;
      positions[static_cast<size_t>(token)] = in.num_computed[s] + token - first;
      if (all_rows || row == in.num_rows || in.rows[row] != token) continue;
      const bool goes_on = row && in.rows[row - 1] == token - 1 && token > first;
      if (goes_on) {
        last_segments.back().num_tokens++;
      } else {
        last_segments.push_back({table, token, 1, positions[static_cast<size_t>(token)], row});
      }
      row++;
    }
  }
  for (AttentionPlan& p : plans) p.build(segments, partials, few);
  if (!all_rows) last_plan->build(last_segments, partials, few);
}

void Model::State::make_room_for_sampling() {
  while (samplers.size() < static_cast<size_t>(options.num_threads)) {
    samplers.emplace_back(kernels, spec.vocab_size);
  }
  if (output.logits) return;
  const size_t count = static_cast<size_t>(input.num_rows) * static_cast<size_t>(spec.vocab_size);
  if (count > num_logits) {
    logits.reset();
    num_logits = 0;
    logits.reset(new float[count]);
    num_logits = count;
  }
  output.logits = logits.get();
}

// A scored prompt's are far more than the next steps need.
void Model::State::drop_large_logits() {
  const size_t few = static_cast<size_t>(options.max_seqs) * static_cast<size_t>(spec.vocab_size);
  if (num_logits <= few) return;
  logits.reset();
  num_logits = 0;
}

const AttentionPlan& Model::State::plan_of(const Layer& layer) const {
  return !all_rows && &layer == &layers.back() ? *last_plan : plans[layer.plan];
}

}  // namespace headrace
