#include "model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "cpu.h"
#include "tiny_model.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headrace {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // slow: one level and model, tokens still over a chunk's end
#else
constexpr bool kSanitized = false;
#endif
#ifdef HEADRACE_EMULATED
constexpr bool kEmulated = true;  // slow too: see is_tested
#else
constexpr bool kEmulated = false;
#endif
constexpr int kLong = kSanitized || kEmulated ? 262 : 290;
constexpr int kShort = 60;  // beyond the windows
constexpr int kMostTokens = 640;
constexpr int kBlocks = 400;

Model::Options options(int threads, CacheKind cache = CacheKind::bf16) {
  return {cache, kBlocks, kMostTokens, 16, kMostTokens, threads};
}

struct Row {
  std::vector<float> logits;
  float max = 0, log_sum_exp = 0;
  int argmax = 0;
  bool operator==(const Row& other) const {
    return argmax == other.argmax && std::memcmp(&max, &other.max, 4) == 0 &&
           std::memcmp(&log_sum_exp, &other.log_sum_exp, 4) == 0 &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * 4) == 0;
  }
};

struct Sequence {
  std::vector<int> tokens;
  std::vector<int32_t> table;
  int computed = 0;
  std::map<int, Row> rows;  // by position

  int left() const { return static_cast<int>(tokens.size()) - computed; }
};

// Drives a model: sequences with blocks dealt at random, steps of any part of each.
class Driver {
 public:
  Driver(Model& model, const ModelSpec& spec, unsigned seed)
      : model_(model), spec_(spec), random_(seed), blocks_(kBlocks) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random_);
  }

  Sequence& add(const std::vector<int>& tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->tokens = tokens;
    for (size_t i = 0; i < (tokens.size() + kBlock - 1) / kBlock; i++) {
      sequence->table.push_back(blocks_.back());
      blocks_.pop_back();
    }
    sequences_.push_back(std::move(sequence));
    return *sequences_.back();
  }

  // wanted: of 4 tokens, how many become rows.
  void step(const std::vector<std::pair<Sequence*, int>>& parts, int wanted = 4) {
    std::vector<int32_t> ids, num_new, num_computed, rows;
    std::vector<std::pair<Sequence*, int>> places;
    size_t stride = 0;
    for (const auto& [sequence, count] : parts) stride = std::max(stride, sequence->table.size());
    std::vector<int32_t> tables;
    for (const auto& [sequence, count] : parts) {
      num_new.push_back(count);
      num_computed.push_back(sequence->computed);
      for (int i = 0; i < count; i++, sequence->computed++) {
        if (static_cast<int>(random_() % 4) < wanted) {
          rows.push_back(static_cast<int32_t>(ids.size()));
          places.emplace_back(sequence, sequence->computed);
        }
        ids.push_back(sequence->tokens[static_cast<size_t>(sequence->computed)]);
      }
      tables.insert(tables.end(), sequence->table.begin(), sequence->table.end());
      tables.resize(tables.size() + stride - sequence->table.size(), -7);
    }
    const size_t vocab = static_cast<size_t>(spec_.vocab_size);
    std::vector<int32_t> argmax(rows.size() + 1);
    std::vector<float> max(rows.size() + 1), sums(rows.size() + 1);
    std::vector<float> logits(rows.size() * vocab + 1);
    StepInput in;
    in.num_tokens = static_cast<int>(ids.size());
    in.num_seqs = static_cast<int>(parts.size());
    in.num_rows = static_cast<int>(rows.size());
    in.table_stride = static_cast<int>(stride);
    in.token_ids = ids.data();
    in.num_new = num_new.data();
    in.num_computed = num_computed.data();
    in.block_tables = tables.data();
    in.rows = rows.data();
    model_.step(in, {argmax.data(), max.data(), sums.data(), logits.data()});
    for (size_t r = 0; r < rows.size(); r++) {
      Row row;
      row.logits.assign(logits.begin() + static_cast<std::ptrdiff_t>(r * vocab),
                        logits.begin() + static_cast<std::ptrdiff_t>((r + 1) * vocab));
      row.max = max[r];
      row.log_sum_exp = sums[r];
      row.argmax = argmax[r];
      places[r].first->rows[places[r].second] = row;
    }
  }

  // Until all is computed: random sequences, random counts, random order.
  void mix(int most, int wanted) {
    for (;;) {
      std::vector<std::pair<Sequence*, int>> parts;
      int room = kMostTokens;
      std::shuffle(sequences_.begin(), sequences_.end(), random_);
      for (const auto& s : sequences_) {
        const int limit = std::min({s->left(), most, room});
        if (limit == 0 || parts.size() == 12 || random_() % 4 == 0) continue;
        const int count = random_() % 2 ? 1 : 1 + static_cast<int>(random_()) % limit;
        parts.emplace_back(s.get(), std::clamp(count, 1, limit));
        room -= parts.back().second;
      }
      if (!parts.empty()) step(parts, wanted);
      if (std::all_of(sequences_.begin(), sequences_.end(),
                      [](const auto& s) { return s->left() == 0; })) {
        return;
      }
    }
  }

 private:
  Model& model_;
  const ModelSpec& spec_;
  std::mt19937 random_;
  std::vector<int32_t> blocks_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

std::vector<int> random_tokens(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens(static_cast<size_t>(count));
  for (int& token : tokens) token = static_cast<int>(random() % 203);
  return tokens;
}

std::map<int, Row> whole(Model& model, const ModelSpec& spec, const std::vector<int>& tokens,
                         unsigned seed = 1) {
  Driver driver(model, spec, seed);
  Sequence& sequence = driver.add(tokens);
  driver.step({{&sequence, sequence.left()}});
  return sequence.rows;
}

void check_same(const std::map<int, Row>& rows, const std::map<int, Row>& expected) {
  CHECK(!rows.empty());
  for (const auto& [position, row] : rows) {
    CAPTURE(position);
    REQUIRE(row == expected.at(position));
  }
}

// Every level that this machine runs, each with the modes that a model can have.
struct Mode {
  const char* name;
  Kinds kinds;
  CacheKind cache;
};
const std::vector<Mode> kModes = {
    {"bf16", {}, CacheKind::bf16},
    {"w8a16", {WeightKind::i8, WeightKind::i8}, CacheKind::i8},
    {"w8a8", {WeightKind::i8a8, WeightKind::i8}, CacheKind::bf16},
    {"w4a16", {WeightKind::q4, WeightKind::q4}, CacheKind::bf16},
    {"groups of int8", {WeightKind::q8, WeightKind::q8}, CacheKind::i8},
    {"w8a8, down too", {WeightKind::i8a8, WeightKind::i8a8}, CacheKind::i8},
};

std::vector<const Kernels*> tested_kernels() {
  std::vector<const Kernels*> kernels = available_kernels();
  if (kSanitized) kernels.resize(1);
  return kernels;
}

template <class F>
void for_each_model(F&& f) {
  static const std::map<std::string, TinyModel> models = tiny_models();
  for (const Kernels* kernels : tested_kernels()) {
    for (const auto& [name, tiny] : models) {
      if (kSanitized && name != "gemma3") continue;  // it has windows and two rope tables
      CAPTURE(kernels->isa);
      CAPTURE(name);
      f(*kernels, tiny, name);
    }
  }
}

// Where that is slow: windows, two rope tables and every norm, with the modes that differ most.
bool is_tested(const std::string& model, size_t mode) {
  if (kSanitized) return mode == 0 || mode == kModes.size() - 1;
  return !kEmulated || (model == "gemma3" && (mode == 3 || mode == kModes.size() - 1));
}

template <class F>
void for_each_mode(F&& f, bool all_of_them = false) {
  for_each_model([&](const Kernels& kernels, const TinyModel& tiny, const std::string& name) {
    for (size_t mode = 0; mode < kModes.size(); mode++) {
      if (!can_hold(tiny, kModes[mode].kinds)) continue;
      if (!all_of_them && !is_tested(name, mode)) continue;
      CAPTURE(kModes[mode].name);
      f(kernels, tiny, kModes[mode]);
    }
  });
}

double tolerance_of(const Kernels& kernels, const Mode& mode) {  // logits spread about 2
  const bool rounded = mode.kinds.most == WeightKind::i8a8 || mode.cache == CacheKind::i8;
  return rounded ? 0.3 : kernels.wide_bytes == 4 ? 0.02 : 0.15;
}

void check_logits(const std::map<int, Row>& rows, const std::vector<std::vector<double>>& expected,
                  double tolerance) {
  for (const auto& [position, row] : rows) {
    const auto& want = expected[static_cast<size_t>(position)];
    double sum = 0;
    for (size_t i = 0; i < want.size(); i++) {
      REQUIRE(std::fabs(static_cast<double>(row.logits[i]) - want[i]) <
              tolerance * (1 + std::fabs(want[i])));
      sum += std::exp(static_cast<double>(row.logits[i]));
    }
    const auto best = std::max_element(row.logits.begin(), row.logits.end());
    REQUIRE(row.argmax == best - row.logits.begin());
    REQUIRE(row.max == *best);
    REQUIRE(static_cast<double>(row.log_sum_exp) == doctest::Approx(std::log(sum)).epsilon(1e-5));
  }
}

TEST_CASE("logits are those of the architecture, written plainly") {
  for_each_model([](const Kernels& kernels, const TinyModel& tiny, const std::string&) {
    const auto tokens = random_tokens(kLong, 9);
    const auto model = load_tiny(tiny, kernels, {}, options(2));
    check_logits(whole(*model, tiny.spec, tokens), reference_logits(tiny, tokens),
                 tolerance_of(kernels, kModes.front()));
  });
}

TEST_CASE("with packed numbers the logits are those of these numbers, in every mode") {
  const auto check = [](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    const auto tokens = random_tokens(kShort, 10);
    const auto model = load_tiny(tiny, kernels, mode.kinds, options(2, mode.cache));
    const auto packed = as_packed(tiny, *pack_tiny(tiny, kernels, mode.kinds), kernels);
    check_logits(whole(*model, tiny.spec, tokens), reference_logits(packed, tokens),
                 tolerance_of(kernels, mode));
  };
  for_each_mode(check, !kSanitized);
}

TEST_CASE("a prompt whole, in chunks and token by token is the same bit for bit") {
  for_each_mode([](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    const auto tokens = random_tokens(kLong, 3);
    const auto model = load_tiny(tiny, kernels, mode.kinds, options(2, mode.cache));
    const auto expected = whole(*model, tiny.spec, tokens);
    Driver chunks(*model, tiny.spec, 2);
    Sequence& one = chunks.add(tokens);
    chunks.mix(70, 3);
    check_same(one.rows, expected);
    Driver single(*model, tiny.spec, 3);
    Sequence& other = single.add(tokens);
    if (kSanitized || kEmulated) single.step({{&other, 240}});
    while (other.left()) single.step({{&other, 1}});
    check_same(other.rows, expected);
  });
}

TEST_CASE("twelve ragged sequences mixed at random are each as alone") {
  for_each_mode([](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    const auto model = load_tiny(tiny, kernels, mode.kinds, options(2, mode.cache));
    Driver mixed(*model, tiny.spec, 11);
    std::vector<Sequence*> sequences;
    for (unsigned i = 0; i < 12; i++) {
      sequences.push_back(
          &mixed.add(random_tokens(i == 5 ? kLong : 3 + static_cast<int>(i) * 7, i)));
    }
    mixed.mix(60, 2);
    for (const Sequence* sequence : sequences) {
      check_same(sequence->rows, whole(*model, tiny.spec, sequence->tokens, 77));
    }
  });
}

TEST_CASE("sequences of a few new tokens each are each as alone") {
  for_each_mode([](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    const auto model = load_tiny(tiny, kernels, mode.kinds, options(2, mode.cache));
    Driver mixed(*model, tiny.spec, 13);
    std::vector<Sequence*> sequences;
    for (unsigned i = 0; i < 9; i++) {
      sequences.push_back(&mixed.add(random_tokens(i == 4 ? kLong : 20 + static_cast<int>(i), i)));
    }
    mixed.step({{sequences[4], 250}});
    mixed.mix(4, 4);
    for (const Sequence* sequence : sequences) {
      check_same(sequence->rows, whole(*model, tiny.spec, sequence->tokens, 78));
    }
  });
}

TEST_CASE("a sequence reads what another one computes in the same step") {
  for_each_mode([](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    const auto model = load_tiny(tiny, kernels, mode.kinds, options(1, mode.cache));
    const auto tokens = random_tokens(kBlock + 2, 8);
    const auto expected = whole(*model, tiny.spec, tokens);
    Driver driver(*model, tiny.spec, 5);
    Sequence& writer = driver.add(tokens);
    Sequence& reader = driver.add(tokens);
    driver.step({{&writer, kBlock - 2}});
    reader.table[0] = writer.table[0];
    reader.computed = kBlock;
    driver.step({{&writer, 2}, {&reader, 2}});
    check_same(reader.rows, expected);
    check_same(writer.rows, expected);
  });
}

TEST_CASE("any number of threads gives the same bits") {
  for_each_mode([](const Kernels& kernels, const TinyModel& tiny, const Mode& mode) {
    std::vector<std::map<int, Row>> all;
    for (const int threads : {1, 2, 3}) {
      const auto model = load_tiny(tiny, kernels, mode.kinds, options(threads, mode.cache));
      Driver driver(*model, tiny.spec, 4);
      Sequence& one = driver.add(random_tokens(kLong, 21));
      Sequence& two = driver.add(random_tokens(5, 22));
      driver.step({{&one, 255}, {&two, 2}}, 2);
      while (one.left()) driver.step({{&one, 1}});
      driver.step({{&two, 3}}, 1);
      all.push_back(one.rows);
      all.back().merge(two.rows);
    }
    check_same(all[1], all[0]);
    check_same(all[2], all[0]);
  });
}

#if defined(__x86_64__)
TEST_CASE("the rounding that a caller has set changes no bits, and the caller keeps it") {
  static constexpr unsigned kStrange = 0xffc0;  // towards zero, denormals are zero in and out
  for_each_model([](const Kernels& kernels, const TinyModel& tiny, const std::string&) {
    const auto tokens = random_tokens(40, 5);
    const auto model = load_tiny(tiny, kernels, {}, options(1));
    const auto expected = whole(*model, tiny.spec, tokens);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(kStrange);
    const auto rows = whole(*model, tiny.spec, tokens);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK((after & kStrange) == kStrange);
    check_same(rows, expected);
  });
}
#endif

// A model of one step's inputs that can be spoilt one at a time.
struct Inputs {
  std::vector<int32_t> ids = {1, 2, 3, 4}, num_new = {3, 1}, computed = {0, 33};
  std::vector<int32_t> tables = {0, 1, 2, 3}, rows = {0, 3};
  std::vector<uint32_t> masks;
  StepInput in() {
    StepInput i;
    i.num_tokens = static_cast<int>(ids.size());
    i.num_seqs = static_cast<int>(num_new.size());
    i.num_rows = static_cast<int>(rows.size());
    i.table_stride = static_cast<int>(tables.size() / num_new.size());
    i.token_ids = ids.data();
    i.num_new = num_new.data();
    i.num_computed = computed.data();
    i.block_tables = tables.data();
    i.rows = rows.data();
    i.masks = masks.empty() ? nullptr : masks.data();
    return i;
  }
};

TEST_CASE("masks leave only the columns that they allow") {
  const auto tiny = tiny_models().at("llama");
  for (const Kernels* kernels : tested_kernels()) {
    const auto model = load_tiny(tiny, *kernels, {}, options(2));
    Inputs inputs;
    inputs.masks.assign(2 * 7, 0);
    std::vector<int> allowed = {5, 31, 32, 77, 202};
    for (const int column : allowed) {
      inputs.masks[static_cast<size_t>(column / 32)] |= 1u << column % 32;
    }
    inputs.masks[7 + 3] = 1u << 9;  // row 1: column 105 alone
    std::vector<int32_t> argmax(2);
    std::vector<float> max(2), sums(2), logits(2 * 203);
    model->step(inputs.in(), {argmax.data(), max.data(), sums.data(), logits.data()});
    const int best = *std::max_element(allowed.begin(), allowed.end(), [&](int a, int b) {
      return logits[static_cast<size_t>(a)] < logits[static_cast<size_t>(b)];
    });
    double sum = 0;
    for (const int c : allowed)
      sum += std::exp(static_cast<double>(logits[static_cast<size_t>(c)]));
    CHECK(argmax[0] == best);
    CHECK(static_cast<double>(sums[0]) == doctest::Approx(std::log(sum)).epsilon(1e-5));
    CHECK(argmax[1] == 105);
    CHECK(max[1] == logits[203 + 105]);
  }
}

TEST_CASE("a step that does not fit is refused by the argument's name") {
  const auto tiny = tiny_models().at("llama");
  const auto model = load_tiny(tiny, *available_kernels().front(), {}, options(1));
  std::vector<int32_t> argmax(700);
  std::vector<float> max(700);
  const auto refused = [&](const char* name, auto spoil) {
    Inputs inputs;
    spoil(inputs);
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(model->step(inputs.in(), {argmax.data(), max.data(), nullptr, nullptr}),
                         doctest::Contains(name), std::invalid_argument);
  };
  model->step(Inputs().in(), {argmax.data(), max.data(), nullptr, nullptr});
  refused("token_ids", [](Inputs& i) { i.ids[2] = 203; });
  refused("token_ids", [](Inputs& i) { i.ids[0] = -1; });
  refused("num_new", [](Inputs& i) { i.num_new = {4, 0}; });
  refused("num_new", [](Inputs& i) { i.num_new = {2, 1}; });
  refused("num_computed", [](Inputs& i) { i.computed[0] = -1; });
  refused("num_computed", [](Inputs& i) { i.computed[1] = 700; });
  refused("num_computed", [](Inputs& i) { i.computed[1] = INT32_MAX; });
  refused("block_tables", [](Inputs& i) { i.computed[1] = 64; });
  refused("block_tables", [](Inputs& i) { i.tables[0] = kBlocks; });
  refused("block_tables", [](Inputs& i) { i.tables[2] = -1; });
  refused("written twice", [](Inputs& i) { i.tables[3] = 0; });
  refused("rows", [](Inputs& i) { i.rows = {1, 1}; });
  refused("rows", [](Inputs& i) { i.rows = {0, 4}; });
  refused("rows", [](Inputs& i) { i.rows = {-1, 3}; });
  refused("masks", [](Inputs& i) { i.masks.assign(14, 0); });
  refused("num_tokens", [](Inputs& i) { i.ids.assign(kMostTokens + 1, 0); });
  refused("num_rows", [](Inputs& i) { i.rows = {0, 1, 2, 3, 4}; });
  // The refusals left no trace: the same step still works.
  model->step(Inputs().in(), {argmax.data(), max.data(), nullptr, nullptr});
}

TEST_CASE("a shape that does not fit is refused by its name") {
  const auto tiny = tiny_models().at("llama");
  const Kernels& kernels = *available_kernels().front();
  const auto weights = pack_tiny(tiny, kernels, {});
  const auto refused = [&](const char* name, auto spoil) {
    ModelSpec spec = tiny.spec;
    Model::Options o = options(1);
    spoil(spec, o);
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(Model(spec, weights, kernels, o), doctest::Contains(name),
                         std::invalid_argument);
  };
  refused("num_heads", [](ModelSpec& s, auto&) { s.num_heads = 5; });
  refused("head_dim", [](ModelSpec& s, auto&) { s.head_dim = 63; });
  refused("head_dim", [](ModelSpec& s, auto&) { s.head_dim = 2048; });
  refused("layers.0.qkv", [](ModelSpec& s, auto&) { s.hidden_size = 64; });
  refused("layers.2.qkv", [](ModelSpec& s, auto&) {
    s.num_layers = 3;
    s.windows.push_back(0);
    s.ropes.push_back(0);
  });
  refused("layers.0.post1", [](ModelSpec& s, auto&) { s.post_norms = true; });
  refused("windows", [](ModelSpec& s, auto&) { s.windows.pop_back(); });
  refused("ropes", [](ModelSpec& s, auto&) { s.ropes[0] = -1; });
  refused("norm_eps", [](ModelSpec& s, auto&) { s.norm_eps = std::nanf(""); });
  refused("num_blocks", [](ModelSpec&, auto& o) { o.num_blocks = 0; });
  refused("max_tokens", [](ModelSpec&, auto& o) { o.max_tokens = INT32_MAX; });
  refused("max_rows", [](ModelSpec&, auto& o) { o.max_rows = kMostTokens + 1; });
  refused("num_threads", [](ModelSpec&, auto& o) { o.num_threads = 0; });
}

TEST_CASE("a rope table that was not set is missed before anything is computed") {
  const auto tiny = tiny_models().at("llama");
  const Kernels& kernels = *available_kernels().front();
  Model model(tiny.spec, pack_tiny(tiny, kernels, {}), kernels, options(1));
  std::vector<int32_t> argmax(2);
  std::vector<float> max(2);
  CHECK_THROWS_WITH_AS(model.step(Inputs().in(), {argmax.data(), max.data(), nullptr, nullptr}),
                       doctest::Contains("set_rope"), std::invalid_argument);
}

TEST_CASE("the profile accounts for a step's time once") {
  const auto tiny = tiny_models().at("gemma3");
  const auto model = load_tiny(tiny, *available_kernels().front(), {}, options(2));
  whole(*model, tiny.spec, random_tokens(200, 1));
  const Profile p = model->profile();
  CHECK(p.steps == 1);
  CHECK(p.total > 0);
  const double parts =
      p.qkv + p.output + p.gate_up + p.down + p.head + p.attention + p.rows + p.rope + p.waiting;
  CHECK(parts <= p.total);
  CHECK(p.attention > 0);
  CHECK(model->profile().steps == 0);
}

TEST_CASE("a block's bytes are those of all layers and heads") {
  const auto tiny = tiny_models().at("llama");
  const Kernels& kernels = *available_kernels().front();
  CHECK(Model::block_bytes(tiny.spec, kernels, CacheKind::bf16) ==
        2 * 2 * kernels.head_bytes(CacheKind::bf16, 64));
}

}  // namespace
}  // namespace headrace
