#include "model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "arguments.h"
#include "bindings.h"
#include "top.h"

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
  nb::object greedy, max, log_sum_exp = nb::none(), logits = nb::none(), top_ids = nb::none(),
                          top_logits = nb::none();
};

class ModelObject {
 public:
  ModelObject(const WeightsObject& weights, const nb::kwargs& kwargs) {
    Keywords keywords(kwargs);
    spec_ = read_spec(keywords);
    const Model::Options options = read_options(keywords);
    keywords.finish();
    num_threads_ = options.num_threads;
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
                  const nb::object& top, nb::handle masks);

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
  int read_top(const nb::object& top, bool wanted) const;
  void compute(const StepArguments& arguments, StepOutput output, int top, int32_t* top_ids,
               float* top_logits);

  ModelSpec spec_;
  int num_threads_ = 1;
  size_t max_rows_ = 0;
  std::unique_ptr<Model> model_;
  std::vector<float> logits_;  // of rows whose largest are wanted
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

int ModelObject::read_top(const nb::object& top, bool wanted) const {
  const int count = int_argument(top, "top");
  if (!wanted && count != 0) throw std::invalid_argument("top: is for want=\"top\"");
  if (wanted && (count < 1 || count > spec_.vocab_size)) {
    throw std::invalid_argument("top: needs 1 to " + std::to_string(spec_.vocab_size));
  }
  return count;
}

void ModelObject::compute(const StepArguments& arguments, StepOutput output, int top,
                          int32_t* top_ids, float* top_logits) {
  const nb::gil_scoped_release release;
  const Use use(*this);
  if (top > 0) {
    const size_t count = arguments.rows.size() * static_cast<size_t>(spec_.vocab_size);
    if (logits_.size() < count) logits_.resize(count);
    output.logits = logits_.data();
  }
  model_->step(arguments.input(), output);
  if (top > 0) {
    select_top({logits_.data(), static_cast<int>(arguments.rows.size()), spec_.vocab_size}, top,
               num_threads_, top_ids, top_logits);
  }
}

StepResult ModelObject::step(nb::handle token_ids, nb::handle num_new, nb::handle num_computed,
                             nb::handle block_tables, nb::handle rows, const std::string& want,
                             const nb::object& top, nb::handle masks) {
  enum { kGreedy, kLogits, kTop };
  const int wanted = choice(want, "want", {"greedy", "logits", "top"});
  const int top_count = read_top(top, wanted == kTop);
  const StepArguments arguments =
      read_step(token_ids, num_new, num_computed, block_tables, rows, masks);
  const size_t num_rows = arguments.rows.size();
  if (num_rows > max_rows_) {  // before room is made for them
    throw std::invalid_argument("rows: more than max_rows, " + std::to_string(max_rows_));
  }

  const size_t vocab = static_cast<size_t>(spec_.vocab_size), kept = static_cast<size_t>(top_count);
  StepOutput output;
  StepResult result;
  output.argmax = new int32_t[num_rows];
  result.greedy = new_array(output.argmax, {num_rows});
  output.max = new float[num_rows];
  result.max = new_array(output.max, {num_rows});
  if (wanted != kGreedy) {
    output.log_sum_exp = new float[num_rows];
    result.log_sum_exp = new_array(output.log_sum_exp, {num_rows});
  }
  if (wanted == kLogits) {
    output.logits = new float[num_rows * vocab];
    result.logits = new_array(output.logits, {num_rows, vocab});
  }
  int32_t* top_ids = nullptr;
  float* top_logits = nullptr;
  if (wanted == kTop) {
    top_ids = new int32_t[num_rows * kept];
    result.top_ids = new_array(top_ids, {num_rows, kept});
    top_logits = new float[num_rows * kept];
    result.top_logits = new_array(top_logits, {num_rows, kept});
  }
  compute(arguments, output, top_count, top_ids, top_logits);
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
      .def_ro("top_ids", &StepResult::top_ids)
      .def_ro("top_logits", &StepResult::top_logits);
  nb::class_<ModelObject>(module, "Model")
      .def(nb::init<const WeightsObject&, const nb::kwargs&>(), nb::arg("weights"),
           nb::arg("kwargs"))
      .def("set_rope", &ModelObject::set_rope, nb::arg("table"), nb::arg("cos"), nb::arg("sin"))
      .def("step", &ModelObject::step, nb::arg("token_ids"), nb::arg("num_new"),
           nb::arg("num_computed"), nb::arg("block_tables"), nb::arg("rows"), nb::kw_only(),
           nb::arg("want"), nb::arg("top") = 0, nb::arg("masks") = nb::none())
      .def("profile", &ModelObject::profile)
      .def_static("block_bytes", &block_bytes, nb::arg("kwargs"));
}

}  // namespace headrace
