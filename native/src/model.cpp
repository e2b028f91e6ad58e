#include "model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model_state.h"
#include "ticks.h"

namespace headrace {
namespace {

constexpr int kLargestHead = 1024;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw std::invalid_argument(name + ": " + why);
}

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(name, std::to_string(value) + " is not between " + std::to_string(least) + " and " +
                     std::to_string(most));
  }
}

void check_positive(const char* name, float value) {
  if (!std::isfinite(value) || value <= 0) refuse(name, "is not a positive number");
}

void check_per_layer(const char* name, const std::vector<int>& values, int num_layers) {
  if (values.size() != static_cast<size_t>(num_layers)) {
    refuse(name, "has " + std::to_string(values.size()) + " entries for " +
                     std::to_string(num_layers) + " layers");
  }
  for (const int value : values) check_range(name, value, 0, INT32_MAX / 2);
}

void check_heads(const ModelSpec& spec) {
  check_range("head_dim", spec.head_dim, 2, kLargestHead);
  if (spec.head_dim % 2) refuse("head_dim", "is odd");
  check_range("num_kv_heads", spec.num_kv_heads, 1, 1 << 16);
  check_range("num_heads", spec.num_heads, 1, 1 << 16);
  if (spec.num_heads % spec.num_kv_heads) {
    refuse("num_heads", "is no multiple of num_kv_heads");
  }
}

const ModelSpec& checked(const ModelSpec& spec) {
  constexpr int kMost = 1 << 24;  // so that products of a few of them fit where they are used
  check_range("num_layers", spec.num_layers, 1, 1 << 16);
  check_range("hidden_size", spec.hidden_size, 1, kMost);
  check_range("intermediate_size", spec.intermediate_size, 1, kMost);
  check_range("vocab_size", spec.vocab_size, 1, kMost);
  check_range("max_position", spec.max_position, 1, 1 << 28);
  check_heads(spec);
  check_positive("norm_eps", spec.norm_eps);
  check_positive("attention_scale", spec.attention_scale);
  check_positive("embedding_scale", spec.embedding_scale);
  check_per_layer("windows", spec.windows, spec.num_layers);
  check_per_layer("ropes", spec.ropes, spec.num_layers);
  for (const int rope : spec.ropes) check_range("ropes", rope, 0, spec.num_layers - 1);
  return spec;
}

const Model::Options& checked(const ModelSpec& spec, const Model::Options& options) {
  check_range("num_blocks", options.num_blocks, 1, INT32_MAX);
  const int64_t numbers =
      std::max<int64_t>({spec.num_heads, 2 * spec.num_kv_heads}) * round_up(spec.head_dim, kPad);
  check_range("max_tokens", options.max_tokens, 1, INT32_MAX / numbers);
  check_range("max_seqs", options.max_seqs, 1, options.max_tokens);
  check_range("max_rows", options.max_rows, 1, options.max_tokens);
  return options;
}

size_t chunks_of(int max_position) {
  return (static_cast<size_t>(max_position) + kChunk - 1) / kChunk;
}

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Model::State::State(const ModelSpec& spec_, std::shared_ptr<const Weights> weights_,
                    const Kernels& kernels_, const Options& options_)
    : spec(checked(spec_)),
      weights(std::move(weights_)),
      kernels(kernels_),
      options(checked(spec, options_)),
      team(options.num_threads) {
  if (!weights) refuse("weights", "there are none");
  if (weights->kernels().layout != kernels.layout) {
    refuse("weights",
           std::string("are packed for ") + weights->kernels().isa + ", not " + kernels.isa);
  }
  width = round_up(spec.head_dim, kPad);
  group = spec.num_heads / spec.num_kv_heads;
  qkv_stride = round_up((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, kPad);
  x_stride = static_cast<size_t>(round_up(spec.hidden_size, kPad));
  query_bytes = static_cast<size_t>(width) * kernels.wide_bytes;
  head_bytes = kernels.head_bytes(options.cache, width);
  block_bytes = head_bytes * static_cast<size_t>(spec.num_kv_heads);
  ropes.resize(static_cast<size_t>(*std::max_element(spec.ropes.begin(), spec.ropes.end())) + 1);
  bind_weights();
  size_buffers();
  first_ticks = headrace::ticks();
  first_nanoseconds = nanoseconds();
}

Matrix Model::State::bind_matrix(const std::string& name, int n, int k) const {
  const Matrix m = weights->matrix(name);
  if (m.n != n || m.k != k) {
    refuse(name, "is " + std::to_string(m.n) + " x " + std::to_string(m.k) + ", expected " +
                     std::to_string(n) + " x " + std::to_string(k));
  }
  return m;
}

const float* Model::State::bind_vector(const std::string& name, size_t size) const {
  const auto v = weights->vector(name);
  if (v.size() != size) {
    refuse(name, "has " + std::to_string(v.size()) + " numbers, expected " + std::to_string(size));
  }
  return v.data();
}

void Model::State::bind_layer(int index) {
  const std::string name = "layers." + std::to_string(index) + ".";
  const int qkv_n = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
  const size_t hidden_size = static_cast<size_t>(spec.hidden_size);
  const size_t dim = static_cast<size_t>(spec.head_dim);
  const auto given = [&](bool flag, const char* what, size_t size) -> const float* {
    return flag ? bind_vector(name + what, size) : nullptr;
  };
  Layer& layer = layers[static_cast<size_t>(index)];
  layer.qkv = bind_matrix(name + "qkv", qkv_n, spec.hidden_size);
  layer.o = bind_matrix(name + "o", spec.hidden_size, spec.num_heads * spec.head_dim);
  layer.gate_up = bind_matrix(name + "gate_up", 2 * spec.intermediate_size, spec.hidden_size);
  layer.down = bind_matrix(name + "down", spec.hidden_size, spec.intermediate_size);
  layer.norm1 = given(true, "norm1", hidden_size);
  layer.norm2 = given(true, "norm2", hidden_size);
  layer.post1 = given(spec.post_norms, "post1", hidden_size);
  layer.post2 = given(spec.post_norms, "post2", hidden_size);
  layer.q_norm = given(spec.qk_norm, "q_norm", dim);
  layer.k_norm = given(spec.qk_norm, "k_norm", dim);
  layer.qkv_bias = given(spec.qkv_bias, "qkv_bias", static_cast<size_t>(qkv_n));
  layer.o_bias = given(spec.output_bias, "o_bias", hidden_size);
  layer.gate_up_bias = given(spec.mlp_bias, "gate_up_bias",
                             2 * static_cast<size_t>(round_up(spec.intermediate_size, kPanel / 2)));
  layer.down_bias = given(spec.mlp_bias, "down_bias", hidden_size);
  layer.window = spec.windows[static_cast<size_t>(index)];
  layer.rope = spec.ropes[static_cast<size_t>(index)];
}

void Model::State::bind_weights() {
  layers.resize(static_cast<size_t>(spec.num_layers));
  for (int i = 0; i < spec.num_layers; i++) bind_layer(i);
  head = bind_matrix("head", spec.vocab_size, spec.hidden_size);
  norm = bind_vector("norm", static_cast<size_t>(spec.hidden_size));
  if (!weights->has("embedding")) return;
  const auto table = weights->table("embedding");
  if (table.size() != checked_bytes("embedding", {static_cast<size_t>(spec.vocab_size),
                                                  static_cast<size_t>(spec.hidden_size)})) {
    refuse("embedding", "is not a table of vocab_size rows of hidden_size numbers");
  }
  embedding = table.data();
}

// Rows that begin a multiple of 4 KiB apart would all meet in one set of the first cache.
size_t Model::State::row_bytes(bool wide, int k) const {
  const size_t bytes = static_cast<size_t>(round_up(k, kPad)) * (wide ? kernels.wide_bytes : 4);
  return bytes % 4096 ? bytes : bytes + 64;
}

size_t Model::State::operand_bytes(OperandKind kind, int k) const {
  if (kind == OperandKind::int8) return static_cast<size_t>(round_up(k, kPad));
  if (kind == OperandKind::wide) return row_bytes(true, k);
  const size_t bytes = Int16Row::bytes(k);
  return bytes % 4096 ? bytes : bytes + 64;
}

bool Model::State::takes_wide(const Matrix& m) const {
  return kernels.operand_kind(m.kind) == OperandKind::wide;
}

void Model::State::place_between(Between& b, size_t rows, int k, bool wide, bool floats) {
  b.wide_bytes = row_bytes(true, k);
  b.float_bytes = row_bytes(false, k);
  if (wide) arena.place(b.wide, "max_tokens", {rows, b.wide_bytes});
  if (floats) arena.place(b.floats, "max_tokens", {rows, b.float_bytes / sizeof(float)});
}

void Model::State::size_private(size_t most_bytes) {
  const auto wide = [&](const Layer& l) { return takes_wide(l.o); };
  const bool any_wide = std::any_of(layers.begin(), layers.end(), wide);
  const bool all_wide = std::all_of(layers.begin(), layers.end(), wide);
  const size_t rows = static_cast<size_t>(round_up(kFewTokens, kernels.first_operand_rows));
  const int max_k =
      std::max({spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim});
  threads.resize(static_cast<size_t>(options.num_threads));
  for (Private& p : threads) {
    arena.place(p.x, "hidden_size", {kFewTokens, x_stride});
    arena.place(p.operand, "hidden_size", {rows, most_bytes});
    arena.place(p.scales, "hidden_size", {rows});
    arena.place(p.queries, "num_heads",
                {kFewTokens, static_cast<size_t>(spec.num_heads), query_bytes});
    place_between(p.attended, rows, spec.num_heads * spec.head_dim, any_wide, !all_wide);
    arena.place(p.scratch, "scratch", {kernels.scratch_bytes(max_k, width)});
  }
}

void Model::State::size_buffers() {
  const size_t tokens = static_cast<size_t>(round_up(options.max_tokens, kPanel));
  const size_t heads = static_cast<size_t>(spec.num_heads);
  const int attended_k = spec.num_heads * spec.head_dim;
  size_t most_bytes = 0;
  for (const int k : {spec.hidden_size, attended_k, spec.intermediate_size}) {
    for (const OperandKind kind : {OperandKind::wide, OperandKind::int8, OperandKind::int16}) {
      most_bytes = std::max(most_bytes, operand_bytes(kind, k));
    }
  }
  const auto any = [&](auto which, bool wide) {
    return std::any_of(layers.begin(), layers.end(),
                       [&](const Layer& l) { return takes_wide(l.*which) == wide; });
  };
  arena.place(x, "max_tokens", {tokens, x_stride});
  arena.place(other_x, "max_tokens", {tokens, x_stride});
  if (spec.post_norms) arena.place(y, "max_tokens", {tokens, x_stride});
  arena.place(qkv, "max_tokens", {tokens, static_cast<size_t>(qkv_stride)});
  arena.place(queries, "max_tokens", {tokens, heads, query_bytes});
  arena.place(operand, "max_tokens", {tokens, most_bytes});
  arena.place(scales, "max_tokens", {tokens});
  place_between(attended, tokens, attended_k, any(&Layer::o, true), any(&Layer::o, false));
  place_between(hidden, tokens, spec.intermediate_size, any(&Layer::down, true),
                any(&Layer::down, false));
  arena.place(head_panels, "max_rows",
              {static_cast<size_t>(options.max_rows), static_cast<size_t>(head.num_panels())});
  partial_floats = static_cast<size_t>(width) + 16;
  num_partials = checked_bytes("max_position", {kFewTokens, heads, chunks_of(spec.max_position)});
  arena.place(partials, "max_position", {num_partials, partial_floats});
  const size_t layer_bytes =
      checked_bytes("num_blocks", {block_bytes, static_cast<size_t>(options.num_blocks)});
  arena.place(kv, "num_blocks", {layer_bytes, layers.size()});
  size_private(most_bytes);
  arena.allocate();
  for (size_t i = 0; i < layers.size(); i++) layers[i].kv = kv + i * layer_bytes;

  const size_t items =
      static_cast<size_t>(spec.num_kv_heads) *
      (static_cast<size_t>(options.max_tokens) * static_cast<size_t>(group) / kQueryRows +
       static_cast<size_t>(std::max(options.max_seqs, options.max_rows)));
  const PlanShape shape{spec.num_heads, spec.num_kv_heads, partial_floats, options.num_threads};
  for (Layer& layer : layers) {
    const auto same = [&](const AttentionPlan& p) { return p.window() == layer.window; };
    auto found = std::find_if(plans.begin(), plans.end(), same);
    layer.plan = static_cast<size_t>(found - plans.begin());
    if (found == plans.end()) plans.emplace_back(shape, layer.window, items, num_partials);
    largest_window = std::max(largest_window, layer.window);
  }
  all_windows = std::all_of(layers.begin(), layers.end(), [](auto& l) { return l.window > 0; });
  last_plan = std::make_unique<AttentionPlan>(shape, layers.back().window, items, num_partials);
  positions.resize(static_cast<size_t>(options.max_tokens));
  sequences.resize(static_cast<size_t>(options.max_tokens));
  segments.reserve(static_cast<size_t>(options.max_seqs));
  last_segments.reserve(static_cast<size_t>(options.max_rows));
  written.resize(static_cast<size_t>(options.num_blocks));
}

Model::Model(const ModelSpec& spec, std::shared_ptr<const Weights> weights, const Kernels& kernels,
             const Options& options)
    : state_(std::make_unique<State>(spec, std::move(weights), kernels, options)) {}

Model::~Model() = default;

void Model::set_rope(int table, const float* cos, const float* sin) {
  check_range("table", table, 0, static_cast<int64_t>(state_->ropes.size()) - 1);
  const size_t size = static_cast<size_t>(state_->spec.max_position) *
                      static_cast<size_t>(state_->spec.head_dim / 2);
  RopeTable& rope = state_->ropes[static_cast<size_t>(table)];
  rope.cos.assign(cos, cos + size);
  rope.sin.assign(sin, sin + size);
}

void Model::step(const StepInput& input, const StepOutput& output) {
  State& s = *state_;
  s.check(input, output);
  const uint64_t begin = ticks();
  s.plan(input, output);
  run_step(s);
  s.drop_large_logits();
  s.ticks.total += ticks() - begin;
  s.ticks.steps++;
}

// The length of a tick follows from how many have passed since the model was made.
Profile Model::profile() {
  State& s = *state_;
  const double passed = static_cast<double>(ticks() - s.first_ticks);
  const double scale = static_cast<double>(nanoseconds() - s.first_nanoseconds) / passed * 1e-6;
  const auto ms = [&](uint64_t t) { return static_cast<double>(t) * scale; };
  const PartTicks t = std::exchange(s.ticks, {});
  return {t.steps,    ms(t.total),     ms(t.qkv),  ms(t.output), ms(t.gate_up), ms(t.down),
          ms(t.head), ms(t.attention), ms(t.rows), ms(t.rope),   ms(t.waiting)};
}

size_t Model::block_bytes(const ModelSpec& spec, const Kernels& kernels, CacheKind cache) {
  check_range("num_layers", spec.num_layers, 1, 1 << 16);
  check_heads(spec);
  return checked_bytes(
      "num_layers", {static_cast<size_t>(spec.num_layers), static_cast<size_t>(spec.num_kv_heads),
                     kernels.head_bytes(cache, round_up(spec.head_dim, kPad))});
}

}  // namespace headrace
