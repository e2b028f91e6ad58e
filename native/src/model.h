// A decoder over packed weights and a paged KV cache: one step of a ragged batch at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "sampling.h"

namespace headrace {

// The shape of a decoder, as headrace.modelfiles.config.ModelConfig has it.
struct ModelSpec {
  int num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int intermediate_size = 0, vocab_size = 0, max_position = 0;
  float norm_eps = 0, attention_scale = 0, embedding_scale = 1;
  Activation activation = Activation::silu;
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false, post_norms = false;
  std::vector<int> windows;  // per layer
  std::vector<int> ropes;    // per layer: which of the tables
};

// Names in a weights file: layers.{i}.{qkv,o,gate_up,down} and head are matrices;
// layers.{i}.{norm1,norm2,post1,post2,q_norm,k_norm,qkv_bias,o_bias,gate_up_bias,down_bias} and
// norm are vectors of float; embedding is a table of bf16 rows, absent when the head's columns
// serve.
class Weights;

struct StepInput {
  int num_tokens = 0, num_seqs = 0, num_rows = 0, table_stride = 0;
  const int32_t* token_ids = nullptr;       // [num_tokens]
  const int32_t* num_new = nullptr;         // [num_seqs]
  const int32_t* num_computed = nullptr;    // [num_seqs]
  const int32_t* block_tables = nullptr;    // [num_seqs][table_stride]
  const int32_t* rows = nullptr;            // [num_rows], rising indices of tokens
  const uint32_t* masks = nullptr;          // [num_rows][ceil(vocab_size / 32)] or null
  const SamplingInput* sampling = nullptr;  // null: no tokens are drawn
};

struct StepOutput {
  int32_t* argmax = nullptr;     // [num_rows]
  float* max = nullptr;          // [num_rows], NaN where an allowed logit is
  float* log_sum_exp = nullptr;  // [num_rows] or null; log-probabilities need it
  float* logits = nullptr;       // [num_rows][vocab_size] or null; masked when sampled
  SamplingOutput sampling{};     // where the input has sampling
};

// Where the first thread's time went since the last look, in milliseconds.
struct Profile {
  int64_t steps = 0;
  double total = 0;
  double qkv = 0, output = 0, gate_up = 0, down = 0;  // products with their epilogues
  double head = 0;                                    // the same, and sampling
  double attention = 0;  // and the work of `rope` where every sequence has few new tokens
  double rows = 0;       // embedding, norms and quantisation
  double rope = 0;       // with writing keys and values
  double waiting = 0;    // for the last units of a phase
};

class Model {
 public:
  struct State;
  struct Options {
    CacheKind cache = CacheKind::bf16;
    int num_blocks = 0, max_tokens = 0, max_seqs = 0, max_rows = 0, num_threads = 1;
  };
  // Throws std::invalid_argument naming what does not fit.
  Model(const ModelSpec&, std::shared_ptr<const Weights>, const Kernels&, const Options&);
  ~Model();

  // cos, sin: [max_position][head_dim / 2]
  void set_rope(int table, const float* cos, const float* sin);

  // Checks every number first (std::invalid_argument), then computes; not thread-safe.
  void step(const StepInput&, const StepOutput&);

  Profile profile();  // since the last call

  static size_t block_bytes(const ModelSpec&, const Kernels&, CacheKind);  // over all layers

 private:
  std::unique_ptr<State> state_;
};

}  // namespace headrace
