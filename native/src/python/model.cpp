#include "model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "arguments.h"
#include "bindings.h"
#include "sampling_arguments.h"

namespace headrace {
namespace {

ModelSpec read_spec(Keywords& keywords) {
  ModelSpec spec;
  spec.num_layers = keywords.integer("num_layers");
  spec.hidden_size = keywords.integer("hidden_size");
  spec.num_heads = keywords.integer("num_heads");
  spec.num_kv_heads = keywords.integer("num_kv_heads");
  spec.head_dim = keywords.integer("head_dim");
  spec.intermediate_size = keywords.integer("intermediate_size");
  spec.vocab_size = keywords.integer("vocab_size");
  spec.max_position = keywords.integer("max_position");
  spec.norm_eps = keywords.number("norm_eps");
  spec.attention_scale = keywords.number("attention_scale");
  spec.embedding_scale = keywords.number("embedding_scale");
  spec.activation = static_cast<Activation>(
      choice(keywords.text("activation"), "activation", {"silu", "gelu_tanh"}));
  spec.qkv_bias = keywords.flag("qkv_bias");
  spec.output_bias = keywords.flag("output_bias");
  spec.mlp_bias = keywords.flag("mlp_bias");
  spec.qk_norm = keywords.flag("qk_norm");
  spec.post_norms = keywords.flag("post_norms");
  spec.windows = keywords.integers("windows");
  spec.ropes = keywords.integers("ropes");
  return spec;
}

CacheKind read_cache(Keywords& keywords) {
  return static_cast<CacheKind>(choice(keywords.text("cache"), "cache", {"bf16", "i8"}));
}

Model::Options read_options(Keywords& keywords) {
  Model::Options options;
  options.cache = read_cache(keywords);
  options.num_blocks = keywords.integer("num_blocks");
  options.max_tokens = keywords.integer("max_tokens");
  options.max_seqs = keywords.integer("max_seqs");
  options.max_rows = keywords.integer("max_rows");
  options.num_threads = keywords.integer("num_threads");
  return options;
}

// A step's input, copied: the caller's arrays may change while it runs, after they were checked.
struct StepArguments {
  std::vector<int32_t> token_ids, num_new, num_computed, block_tables, rows;
  std::optional<ArrayArgument<uint32_t>> masks;  // any bits are valid ones
  std::optional<SamplingArguments> sampling;
  int table_stride;

  StepInput input() const {
    StepInput input;
    input.num_tokens = static_cast<int>(token_ids.size());
    input.num_seqs = static_cast<int>(num_new.size());
    input.num_rows = static_cast<int>(rows.size());
    input.table_stride = table_stride;
    input.token_ids = token_ids.data();
    input.num_new = num_new.data();
    input.num_computed = num_computed.data();
    input.block_tables = block_tables.data();
    input.rows = rows.data();
    input.masks = masks ? masks->values.data() : nullptr;
    return input;
  }
};

std::vector<int32_t> copy(const ArrayArgument<int32_t>& argument) {
  return {argument.values.begin(), argument.values.end()};
}

// What a step gives; arrays that were not asked for are None.
struct StepResult {
  nb::object greedy, max, log_sum_exp = nb::none(), logits = nb::none(), token_ids = nb::none(),
                          logprobs = nb::none(), top_ids = nb::none(), top_logprobs = nb::none();
};

class ModelObject {
 public:
  ModelObject(const WeightsObject& weights, const nb::kwargs& kwargs) {
    Keywords keywords(kwargs);
    spec_ = read_spec(keywords);
    const Model::Options options = read_options(keywords);
    keywords.finish();
    max_rows_ = static_cast<size_t>(std::max(options.max_rows, 0));
    const nb::gil_scoped_release release;
    model_ = std::make_unique<Model>(spec_, weights.weights, weights.weights->kernels(), options);
  }

  void set_rope(const nb::object& table, nb::handle cos, nb::handle sin) {
    const int index = int_argument(table, "table");
    const auto cosines =
        array_argument<float>(cos, "cos", {spec_.max_position, spec_.head_dim / 2});
    const auto sines = array_argument<float>(sin, "sin", {spec_.max_position, spec_.head_dim / 2});
    const Use use(*this);
    model_->set_rope(index, cosines.values.data(), sines.values.data());
  }

  StepResult step(nb::handle token_ids, nb::handle num_new, nb::handle num_computed,
                  nb::handle block_tables, nb::handle rows, const std::string& want,
                  nb::handle masks, nb::handle sampling);

  nb::dict profile();

 private:
  // Holds the model for one call: a second thread is told, and corrupts nothing. So is a process
  // that was forked within the call, whose copy is left half computed.
  class Use {
   public:
    explicit Use(ModelObject& model) : model_(model) {
      if (model_.in_use_.test_and_set(std::memory_order_acquire)) {
        throw std::runtime_error("the model is in use by another thread");
      }
    }
    ~Use() { model_.in_use_.clear(std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ModelObject& model_;
  };

  StepArguments read_step(nb::handle token_ids, nb::handle num_new, nb::handle num_computed,
                          nb::handle block_tables, nb::handle rows, nb::handle masks) const;
  SamplingArguments read_sampling(nb::handle sampling, size_t num_rows) const;
  static SamplingOutput make_output(const SamplingArguments& arguments, StepResult& result);
  void compute(const StepArguments& arguments, const StepOutput& output);

  ModelSpec spec_;
  size_t max_rows_ = 0;
  std::unique_ptr<Model> model_;
  std::atomic_flag in_use_;
};

StepArguments ModelObject::read_step(nb::handle token_ids, nb::handle num_new,
                                     nb::handle num_computed, nb::handle block_tables,
                                     nb::handle rows, nb::handle masks) const {
  StepArguments step;
  step.token_ids = copy(array_argument<int32_t>(token_ids, "token_ids", {-1}));
  step.num_new = copy(array_argument<int32_t>(num_new, "num_new", {-1}));
  const auto num_seqs = static_cast<int64_t>(step.num_new.size());
  step.num_computed = copy(array_argument<int32_t>(num_computed, "num_computed", {num_seqs}));
  const auto tables = array_argument<int32_t>(block_tables, "block_tables", {num_seqs, -1});
  step.block_tables = copy(tables);
  step.table_stride = static_cast<int>(tables.shape(1));
  step.rows = copy(array_argument<int32_t>(rows, "rows", {-1}));
  if (!masks.is_none()) {
    step.masks = array_argument<uint32_t>(
        masks, "masks", {static_cast<int64_t>(step.rows.size()), (spec_.vocab_size + 31) / 32});
  }
  return step;
}

SamplingArguments ModelObject::read_sampling(nb::handle sampling, size_t num_rows) const {
  SamplingArguments arguments(sampling, num_rows);
  if (arguments.max_top() > spec_.vocab_size) {  // before room is made for them
    throw std::invalid_argument("sampling.num_top: there are " + std::to_string(spec_.vocab_size) +
                                " tokens");
  }
  return arguments;
}

void ModelObject::compute(const StepArguments& arguments, const StepOutput& output) {
  const nb::gil_scoped_release release;
  const Use use(*this);
  StepInput input = arguments.input();
  if (!arguments.sampling) return model_->step(input, output);
  const SamplingInput sampling = arguments.sampling->input();
  input.sampling = &sampling;
  model_->step(input, output);
}

// Room for one of a result's arrays.
template <class T>
T* make_array(nb::object& result, std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (const size_t length : shape) size *= length;
  T* numbers = new T[size];
  result = new_array(numbers, shape);
  return numbers;
}

SamplingOutput ModelObject::make_output(const SamplingArguments& arguments, StepResult& result) {
  const size_t num_rows = arguments.target.size();
  SamplingOutput to;
  to.token_ids = make_array<int32_t>(result.token_ids, {num_rows});
  if (!arguments.wants_logprobs()) return to;
  to.max_top = arguments.max_top();
  const size_t top = static_cast<size_t>(to.max_top);
  to.logprobs = make_array<float>(result.logprobs, {num_rows});
  to.top_ids = make_array<int32_t>(result.top_ids, {num_rows, top});
  to.top_logprobs = make_array<float>(result.top_logprobs, {num_rows, top});
  return to;
}

StepResult ModelObject::step(nb::handle token_ids, nb::handle num_new, nb::handle num_computed,
                             nb::handle block_tables, nb::handle rows, const std::string& want,
                             nb::handle masks, nb::handle sampling) {
  const bool want_logits = choice(want, "want", {"greedy", "logits"}) == 1;
  StepArguments arguments = read_step(token_ids, num_new, num_computed, block_tables, rows, masks);
  const size_t num_rows = arguments.rows.size();
  if (num_rows > max_rows_) {  // before room is made for them
    throw std::invalid_argument("rows: more than max_rows, " + std::to_string(max_rows_));
  }
  StepOutput output;
  StepResult result;
  output.argmax = make_array<int32_t>(result.greedy, {num_rows});
  output.max = make_array<float>(result.max, {num_rows});
  if (!sampling.is_none()) {
    arguments.sampling = read_sampling(sampling, num_rows);
    output.sampling = make_output(*arguments.sampling, result);
  }
  if (want_logits || output.sampling.logprobs)
    output.log_sum_exp = make_array<float>(result.log_sum_exp, {num_rows});
  if (want_logits) {
    output.logits =
        make_array<float>(result.logits, {num_rows, static_cast<size_t>(spec_.vocab_size)});
  }
  compute(arguments, output);
  return result;
}

nb::dict ModelObject::profile() {
  const Use use(*this);
  const Profile profile = model_->profile();
  nb::dict parts;
  parts["steps"] = profile.steps;
  parts["total"] = profile.total;
  parts["qkv"] = profile.qkv;
  parts["output"] = profile.output;
  parts["gate_up"] = profile.gate_up;
  parts["down"] = profile.down;
  parts["head"] = profile.head;
  parts["attention"] = profile.attention;
  parts["rows"] = profile.rows;
  parts["rope"] = profile.rope;
  parts["waiting"] = profile.waiting;
  return parts;
}

size_t block_bytes(const nb::kwargs& kwargs) {
  Keywords keywords(kwargs);
  const ModelSpec spec = read_spec(keywords);
  const CacheKind cache = read_cache(keywords);
  const std::optional<std::string> isa = keywords.optional_text("isa");
  keywords.finish();
  return Model::block_bytes(spec, kernels_for(isa), cache);
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<StepResult>(module, "StepResult")
      .def_ro("greedy", &StepResult::greedy)
      .def_ro("max", &StepResult::max)
      .def_ro("log_sum_exp", &StepResult::log_sum_exp)
      .def_ro("logits", &StepResult::logits)
      .def_ro("token_ids", &StepResult::token_ids)
      .def_ro("logprobs", &StepResult::logprobs)
      .def_ro("top_ids", &StepResult::top_ids)
      .def_ro("top_logprobs", &StepResult::top_logprobs);
  nb::class_<ModelObject>(module, "Model")
      .def(nb::init<const WeightsObject&, const nb::kwargs&>(), nb::arg("weights"),
           nb::arg("kwargs"))
      .def("set_rope", &ModelObject::set_rope, nb::arg("table"), nb::arg("cos"), nb::arg("sin"))
      .def("step", &ModelObject::step, nb::arg("token_ids"), nb::arg("num_new"),
           nb::arg("num_computed"), nb::arg("block_tables"), nb::arg("rows"), nb::kw_only(),
           nb::arg("want"), nb::arg("masks") = nb::none(), nb::arg("sampling") = nb::none())
      .def("profile", &ModelObject::profile)
      .def_static("block_bytes", &block_bytes, nb::arg("kwargs"));
}

}  // namespace headrace
