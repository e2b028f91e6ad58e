// What a model holds between steps, and what one step reads. Shared by the files that make, check
// and compute; nobody else's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "model.h"
#include "plan.h"
#include "threads.h"
#include "weights.h"

namespace headrace {

// Up to so many tokens every thread prepares a product's operand for itself, inside its first unit:
// cheaper than a phase of its own.
constexpr int kFewTokens = 4;
constexpr int kFewNumbers = 8192;  // tokens x hidden size
constexpr int kRowChunk = 512;     // rows that a panel is multiplied with at a time

struct Layer {
  Matrix qkv, o, gate_up, down;
  const float *norm1 = nullptr, *norm2 = nullptr, *post1 = nullptr, *post2 = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  const float *qkv_bias = nullptr, *o_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  int window = 0, rope = 0;
  size_t plan = 0;  // which of the plans has its window
  uint8_t* kv = nullptr;
};

struct RopeTable {
  std::vector<float> cos, sin;  // [max_position][head_dim / 2]
};

// Rows of a product's operand, as they are before that product: wide, or float when the product
// wants integers. Both where layers differ, so that nobody else writes to the zeros at a row's end.
struct Between {
  uint8_t* wide = nullptr;
  float* floats = nullptr;
  size_t wide_bytes = 0, float_bytes = 0;  // of a row

  Rows rows(bool want_wide) const {
    return want_wide ? Rows{wide, wide_bytes, true}
                     : Rows{reinterpret_cast<uint8_t*>(floats), float_bytes, false};
  }
};

// One thread's own, for steps of few tokens.
struct Private {
  float* x = nullptr;          // [kFewTokens][x_stride]
  uint8_t* operand = nullptr;  // [kPrivateRows] rows
  float* scales = nullptr;
  uint8_t* queries = nullptr;  // wide [kFewTokens][num_heads][width]
  Between attended;
  uint8_t* scratch = nullptr;
};

// Ticks of the first thread.
struct PartTicks {
  uint64_t total = 0, qkv = 0, output = 0, gate_up = 0, down = 0, head = 0, attention = 0, rows = 0,
           rope = 0, waiting = 0;
  int64_t steps = 0;
};

struct Model::State {
  State(const ModelSpec&, std::shared_ptr<const Weights>, const Kernels&, const Options&);

  ModelSpec spec;
  std::shared_ptr<const Weights> weights;
  const Kernels& kernels;
  Options options;
  Team team;

  // Sizes.
  int width = 0, group = 0, qkv_stride = 0;  // in numbers
  size_t x_stride = 0, head_bytes = 0, block_bytes = 0, partial_floats = 0, num_partials = 0;
  size_t query_bytes = 0;  // of one head
  bool all_windows = false;
  int largest_window = 0;

  std::vector<Layer> layers;
  Matrix head;
  const float* norm = nullptr;
  const uint16_t* embedding = nullptr;  // null: the head's columns
  std::vector<RopeTable> ropes;

  // Shared by the threads.
  Arena arena;
  float *x = nullptr, *other_x = nullptr, *y = nullptr, *qkv = nullptr, *partials = nullptr;
  uint8_t *queries = nullptr, *operand = nullptr, *kv = nullptr;
  float* scales = nullptr;
  Between attended, hidden;
  HeadPanel* head_panels = nullptr;
  std::vector<Private> threads;

  // This step's.
  StepInput input;
  StepOutput output;
  std::vector<int32_t> positions, sequences;  // of each token
  std::vector<Segment> segments, last_segments;
  std::vector<AttentionPlan> plans;  // one for each window
  std::unique_ptr<AttentionPlan> last_plan;
  std::vector<uint32_t> written;  // [num_blocks]: the last step that writes to a block
  uint32_t step_number = 0;
  bool few = false, all_rows = false;
  bool fuse_rope = false;  // every attention item has all rows of its sequence, and rotates them

  // Made by the first step that samples: the logits of its rows, and room for each thread.
  std::unique_ptr<float[]> logits;
  size_t num_logits = 0;
  std::vector<RowSampler> samplers;

  PartTicks ticks;
  uint64_t first_ticks = 0;
  int64_t first_nanoseconds = 0;

  void bind_weights();
  void bind_layer(int index);
  Matrix bind_matrix(const std::string& name, int n, int k) const;
  const float* bind_vector(const std::string& name, size_t size) const;
  void size_buffers();
  void size_private(size_t most_bytes);
  void place_between(Between&, size_t rows, int k, bool wide, bool floats);
  size_t row_bytes(bool wide, int k) const;
  size_t operand_bytes(OperandKind, int k) const;
  bool takes_wide(const Matrix&) const;

  void check(const StepInput&, const StepOutput&);
  void check_sequences(const StepInput&);
  void check_sampling(const StepInput&, const StepOutput&) const;
  void check_blocks(const StepInput&, int sequence);
  int first_block(int num_computed) const;
  bool reads_no_new_block(const StepInput&) const;
  void plan(const StepInput&, const StepOutput&);
  const AttentionPlan& plan_of(const Layer&) const;
  void make_room_for_sampling();
  void drop_large_logits();
};

// What the threads do in a step, in step.cpp.
void run_step(Model::State&);

}  // namespace headrace
