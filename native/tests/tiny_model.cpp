#include "tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headrace {
namespace {

float to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits += 0x7fff + (bits >> 16 & 1);
  bits &= 0xffff0000;
  std::memcpy(&value, &bits, 4);
  return value;
}

using Vector = std::vector<double>;

Vector multiply(const std::vector<float>& matrix, const Vector& x) {
  Vector out(matrix.size() / x.size());
  for (size_t n = 0; n < out.size(); n++) {
    for (size_t k = 0; k < x.size(); k++) {
      out[n] += static_cast<double>(matrix[n * x.size() + k]) * x[k];
    }
  }
  return out;
}

void add(Vector& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); i++) x[i] += static_cast<double>(y[i]);
}
void add(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
}

Vector rms_norm(const Vector& x, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double r = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Vector out(x);
  for (size_t i = 0; i < x.size(); i++) out[i] *= r * static_cast<double>(weight[i]);
  return out;
}

double activate(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

class Reference {
 public:
  explicit Reference(const TinyModel& model) : m_(model), spec_(model.spec) {
    cache_.resize(static_cast<size_t>(spec_.num_layers));
  }

  Vector next(int token) {
    const size_t hidden = static_cast<size_t>(spec_.hidden_size);
    const auto& table = m_.values.at(m_.tied ? "head" : "embedding");
    Vector x(hidden);
    for (size_t i = 0; i < hidden; i++) {
      x[i] = static_cast<double>(table[static_cast<size_t>(token) * hidden + i]) *
             static_cast<double>(spec_.embedding_scale);
    }
    for (int l = 0; l < spec_.num_layers; l++) layer(l, x);
    position_++;
    return multiply(m_.values.at("head"), normed(x, "norm"));
  }

 private:
  struct Entry {
    Vector key, value;
  };

  Vector normed(const Vector& x, const std::string& name) const {
    return rms_norm(x, m_.values.at(name), static_cast<double>(spec_.norm_eps));
  }

  Vector linear(const Vector& x, const std::string& name) const {
    Vector out = multiply(m_.values.at(name), x);
    if (m_.values.contains(name + "_bias")) add(out, m_.values.at(name + "_bias"));
    return out;
  }

  void join(Vector& x, const Vector& y, const std::string& post) const {
    add(x, spec_.post_norms ? normed(y, post) : y);
  }

  void layer(int l, Vector& x) {
    const std::string name = "layers." + std::to_string(l) + ".";
    join(x, linear(attend(l, linear(normed(x, name + "norm1"), name + "qkv")), name + "o"),
         name + "post1");
    const Vector h = normed(x, name + "norm2");
    Vector gate = linear(h, name + "gate");
    const Vector up = linear(h, name + "up");
    for (size_t i = 0; i < gate.size(); i++) gate[i] = activate(spec_.activation, gate[i]) * up[i];
    join(x, linear(gate, name + "down"), name + "post2");
  }

  Vector head_of(const Vector& qkv, int head, int l, const char* norm) const {
    const size_t dim = static_cast<size_t>(spec_.head_dim), half = dim / 2;
    const auto begin = qkv.begin() + head * spec_.head_dim;
    Vector h(begin, begin + spec_.head_dim);
    if (!norm) return h;
    if (spec_.qk_norm) h = normed(h, "layers." + std::to_string(l) + "." + norm);
    const size_t table = static_cast<size_t>(spec_.ropes[static_cast<size_t>(l)]);
    Vector out(dim);
    for (size_t i = 0; i < half; i++) {
      const double c = static_cast<double>(m_.cos[table][position_ * half + i]);
      const double s = static_cast<double>(m_.sin[table][position_ * half + i]);
      out[i] = h[i] * c - h[half + i] * s;
      out[half + i] = h[half + i] * c + h[i] * s;
    }
    return out;
  }

  static Vector rounded(Vector v) {
    for (double& d : v) d = static_cast<double>(to_bf16(static_cast<float>(d)));
    return v;
  }

  Vector attend(int l, const Vector& qkv) {
    std::vector<std::vector<Entry>>& heads = cache_[static_cast<size_t>(l)];
    heads.resize(static_cast<size_t>(spec_.num_kv_heads));
    for (int h = 0; h < spec_.num_kv_heads; h++) {
      const int key = spec_.num_heads + h;
      heads[static_cast<size_t>(h)].push_back(
          {rounded(head_of(qkv, key, l, "k_norm")),
           rounded(head_of(qkv, key + spec_.num_kv_heads, l, nullptr))});
    }
    Vector out;
    for (int h = 0; h < spec_.num_heads; h++) {
      const int kv = h / (spec_.num_heads / spec_.num_kv_heads);
      const Vector one = one_head(head_of(qkv, h, l, "q_norm"), heads[static_cast<size_t>(kv)],
                                  spec_.windows[static_cast<size_t>(l)]);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  Vector one_head(const Vector& q, const std::vector<Entry>& entries, int window) const {
    const size_t count = entries.size(), w = static_cast<size_t>(window);
    const size_t first = w && count > w ? count - w : 0;
    Vector scores;
    for (size_t i = first; i < count; i++) {
      double dot = 0;
      for (size_t d = 0; d < q.size(); d++) dot += q[d] * entries[i].key[d];
      scores.push_back(dot * static_cast<double>(spec_.attention_scale));
    }
    const double peak = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    Vector out(q.size());
    for (size_t i = first; i < count; i++) {
      const double p = std::exp(scores[i - first] - peak);
      total += p;
      for (size_t d = 0; d < q.size(); d++) out[d] += p * entries[i].value[d];
    }
    for (double& v : out) v /= total;
    return out;
  }

  const TinyModel& m_;
  const ModelSpec& spec_;
  size_t position_ = 0;
  std::vector<std::vector<std::vector<Entry>>> cache_;  // [layer][kv head][position]
};

struct Random {
  std::mt19937 engine;
  float normal() {
    const double u = (engine() + 1.0) / 4294967297.0, v = engine() / 4294967296.0;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  }
  std::vector<float> matrix(int n, int k, float gain = 1) {
    std::vector<float> out(static_cast<size_t>(n) * static_cast<size_t>(k));
    const float scale = gain / std::sqrt(static_cast<float>(k));
    for (float& v : out) v = to_bf16(normal() * scale);
    return out;
  }
  std::vector<float> vector(int n, float mean, float spread) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& v : out) v = mean + spread * normal();
    return out;
  }
};

void make_layer(TinyModel& m, Random& random, int l) {
  const ModelSpec& s = m.spec;
  const std::string name = "layers." + std::to_string(l) + ".";
  auto& v = m.values;
  v[name + "qkv"] = random.matrix(m.qkv_n(), s.hidden_size);
  v[name + "o"] = random.matrix(s.hidden_size, s.num_heads * s.head_dim);
  v[name + "gate"] = random.matrix(s.intermediate_size, s.hidden_size);
  v[name + "up"] = random.matrix(s.intermediate_size, s.hidden_size);
  v[name + "down"] = random.matrix(s.hidden_size, s.intermediate_size);
  for (const char* norm : {"norm1", "norm2"})
    v[name + norm] = random.vector(s.hidden_size, 1, 0.2f);
  for (const char* norm : {"post1", "post2"}) {
    if (s.post_norms) v[name + norm] = random.vector(s.hidden_size, 1, 0.2f);
  }
  for (const char* norm : {"q_norm", "k_norm"}) {
    if (s.qk_norm) v[name + norm] = random.vector(s.head_dim, 1, 0.2f);
  }
  if (s.qkv_bias) v[name + "qkv_bias"] = random.vector(m.qkv_n(), 0, 0.5f);
  if (s.output_bias) v[name + "o_bias"] = random.vector(s.hidden_size, 0, 0.5f);
  if (!s.mlp_bias) return;
  v[name + "gate_bias"] = random.vector(s.intermediate_size, 0, 0.5f);
  v[name + "up_bias"] = random.vector(s.intermediate_size, 0, 0.5f);
  v[name + "down_bias"] = random.vector(s.hidden_size, 0, 0.5f);
}

Stored stored(const std::vector<float>& values, int rows) {
  return {"F32",
          rows,
          {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}};
}

// Groups of 32 as Q8_0 and Q4_0 store them: a scale in half precision, then numbers from -127 to
// 127, or sixteen bytes of two numbers each that stand for themselves less 8.
struct Grouped {
  std::vector<uint8_t> bytes;
  const char* format;

  Grouped(const std::vector<float>& values, bool four_bits) : format(four_bits ? "Q4_0" : "Q8_0") {
    for (size_t i = 0; i < values.size(); i += kGroup) put(&values[i], four_bits);
  }
  Stored stored(int rows) const { return {format, rows, bytes}; }

 private:
  void put(const float* values, bool four_bits) {
    float most = 0;
    for (int i = 0; i < kGroup; i++) most = std::max(most, std::fabs(values[i]));
    const _Float16 scale = static_cast<_Float16>(most / (four_bits ? 7.f : 127.f));
    const auto number = [&](int i) {
      return static_cast<int>(std::lround(values[i] / std::max(static_cast<float>(scale), 1e-6f)));
    };
    const size_t first = bytes.size();
    bytes.resize(first + sizeof scale);
    std::memcpy(&bytes[first], &scale, sizeof scale);
    for (int i = 0; i < (four_bits ? kGroup / 2 : kGroup); i++) {
      const int low = number(i), high = four_bits ? number(i + kGroup / 2) + 8 : 0;
      bytes.push_back(static_cast<uint8_t>(four_bits ? low + 8 + high * 16 : low));
    }
  }
};

bool is_grouped(WeightKind kind) { return kind == WeightKind::q8 || kind == WeightKind::q4; }

void put_matrix(Weights& weights, const std::string& name, WeightKind kind,
                const std::vector<const std::vector<float>*>& parts, int rows_each) {
  std::vector<Grouped> groups;
  std::vector<Stored> from;
  for (const auto* values : parts) {
    if (is_grouped(kind)) groups.emplace_back(*values, kind == WeightKind::q4);
  }
  for (size_t i = 0; i < parts.size(); i++) {
    from.push_back(is_grouped(kind) ? groups[i].stored(rows_each) : stored(*parts[i], rows_each));
  }
  weights.put(name, from, parts.size() == 2);
}

// Sixteen of the gate's, then sixteen of up's.
std::vector<float> interleaved(const std::vector<float>& gate, const std::vector<float>& up) {
  const size_t panels = (gate.size() + 15) / 16;
  std::vector<float> out(panels * 32);
  for (size_t i = 0; i < gate.size(); i++) {
    out[i / 16 * 32 + i % 16] = gate[i];
    out[i / 16 * 32 + 16 + i % 16] = up[i];
  }
  return out;
}

bool is_matrix(const std::string& name) {
  for (const char* end : {".qkv", ".o", ".down", "head"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

ModelSpec shape(int hidden, int heads, int kv_heads, int dim, int intermediate, int layers = 2) {
  ModelSpec s;
  s.num_layers = layers;
  s.hidden_size = hidden;
  s.num_heads = heads;
  s.num_kv_heads = kv_heads;
  s.head_dim = dim;
  s.intermediate_size = intermediate;
  s.vocab_size = 203;
  s.max_position = 700;
  s.norm_eps = 1e-5f;
  s.attention_scale = 1 / std::sqrt(static_cast<float>(dim));
  s.windows.assign(static_cast<size_t>(layers), 0);
  s.ropes.assign(static_cast<size_t>(layers), 0);
  return s;
}

}  // namespace

TinyModel make_tiny(const ModelSpec& spec, bool tied, unsigned seed) {
  TinyModel m{spec, tied, {}, {}, {}};
  Random random{std::mt19937(seed)};
  for (int l = 0; l < spec.num_layers; l++) make_layer(m, random, l);
  m.values["norm"] = random.vector(spec.hidden_size, 1, 0.2f);
  m.values["head"] = random.matrix(spec.vocab_size, spec.hidden_size, 2);
  if (!tied) m.values["embedding"] = random.matrix(spec.vocab_size, spec.hidden_size, 8);
  const int tables = *std::max_element(spec.ropes.begin(), spec.ropes.end()) + 1;
  for (int t = 0; t < tables; t++) {
    std::vector<float> cos, sin;
    for (int p = 0; p < spec.max_position; p++) {
      for (int i = 0; i < spec.head_dim / 2; i++) {
        const double base = t ? 300 : 10000, angle = p * std::pow(base, -2.0 * i / spec.head_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    m.cos.push_back(cos);
    m.sin.push_back(sin);
  }
  return m;
}

std::shared_ptr<Weights> pack_tiny(const TinyModel& m, const Kernels& kernels, const Kinds& kinds) {
  std::vector<Entry> entries;
  const ModelSpec& s = m.spec;
  const auto matrix = [&](const std::string& name, WeightKind kind, int n, int k) {
    entries.push_back({name, Entry::Kind::matrix, kind, n, k});
  };
  std::map<std::string, std::vector<float>> joined;
  for (int l = 0; l < s.num_layers; l++) {
    const std::string name = "layers." + std::to_string(l) + ".";
    matrix(name + "qkv", kinds.most, m.qkv_n(), s.hidden_size);
    matrix(name + "o", kinds.most, s.hidden_size, s.num_heads * s.head_dim);
    matrix(name + "gate_up", kinds.most, 2 * s.intermediate_size, s.hidden_size);
    matrix(name + "down", kinds.down, s.hidden_size, s.intermediate_size);
    if (s.mlp_bias) {
      joined[name + "gate_up_bias"] =
          interleaved(m.values.at(name + "gate_bias"), m.values.at(name + "up_bias"));
    }
  }
  matrix("head", kinds.most, s.vocab_size, s.hidden_size);
  const auto plain = [&](const std::string& name) {
    return !is_matrix(name) && name != "embedding" && name.find("gate") == std::string::npos &&
           !name.ends_with(".up") && !name.ends_with(".up_bias");
  };
  for (const auto& [name, values] : m.values) {
    if (plain(name)) joined[name] = values;
  }
  for (const auto& [name, values] : joined) {
    entries.push_back(
        {name, Entry::Kind::vector, WeightKind::bf16, 1, static_cast<int>(values.size())});
  }
  if (!m.tied) {
    entries.push_back(
        {"embedding", Entry::Kind::table, WeightKind::bf16, s.vocab_size, s.hidden_size});
  }
  auto weights = Weights::create("", "tiny", kernels, entries, 1);
  for (const auto& [name, values] : joined) weights->put(name, {stored(values, 1)}, false);
  for (const auto& [name, values] : m.values) {
    if (!is_matrix(name) && name != "embedding") continue;
    for (const Entry& e : entries) {
      if (e.name == name) put_matrix(*weights, name, e.weight, {&values}, e.n);
    }
  }
  for (int l = 0; l < s.num_layers; l++) {
    const std::string name = "layers." + std::to_string(l) + ".";
    put_matrix(*weights, name + "gate_up", kinds.most,
               {&m.values.at(name + "gate"), &m.values.at(name + "up")}, s.intermediate_size);
  }
  weights->finish();
  return weights;
}

TinyModel as_packed(const TinyModel& m, const Weights& weights, const Kernels& kernels) {
  TinyModel packed = m;
  const auto read = [&](const std::string& matrix, int first, std::vector<float>& out) {
    const Matrix from = weights.matrix(matrix);
    const size_t k = static_cast<size_t>(from.k);
    for (size_t row = 0; row * k < out.size(); row++) {
      const int r = static_cast<int>(row);
      const int column = first < 0 ? r : r / 16 * kPanel + first + r % 16;  // interleaved or not
      kernels.read_column(from, column, &out[row * k]);
    }
  };
  for (auto& [name, values] : packed.values) {
    const size_t stem = name.rfind('.') + 1;
    if (is_matrix(name)) read(name, -1, values);
    if (name.ends_with(".gate")) read(name.substr(0, stem) + "gate_up", 0, values);
    if (name.ends_with(".up")) read(name.substr(0, stem) + "gate_up", 16, values);
  }
  return packed;
}

bool can_hold(const TinyModel& m, const Kinds& kinds) {
  const ModelSpec& s = m.spec;
  const bool most = s.hidden_size % kGroup == 0 && s.num_heads * s.head_dim % kGroup == 0;
  return (!is_grouped(kinds.most) || most) &&
         (!is_grouped(kinds.down) || s.intermediate_size % kGroup == 0);
}

std::unique_ptr<Model> load_tiny(const TinyModel& m, const Kernels& kernels, const Kinds& kinds,
                                 const Model::Options& options) {
  auto model = std::make_unique<Model>(m.spec, pack_tiny(m, kernels, kinds), kernels, options);
  for (size_t t = 0; t < m.cos.size(); t++) {
    model->set_rope(static_cast<int>(t), m.cos[t].data(), m.sin[t].data());
  }
  return model;
}

std::vector<std::vector<double>> reference_logits(const TinyModel& m,
                                                  const std::vector<int>& tokens) {
  Reference reference(m);
  std::vector<std::vector<double>> out;
  for (const int token : tokens) out.push_back(reference.next(token));
  return out;
}

std::map<std::string, TinyModel> tiny_models() {
  std::map<std::string, TinyModel> models;
  models["llama"] = make_tiny(shape(100, 6, 2, 64, 144), false, 1);
  ModelSpec mistral = shape(64, 4, 2, 96, 80);
  mistral.windows = {40, 40};
  models["mistral"] = make_tiny(mistral, true, 2);
  ModelSpec qwen2 = shape(72, 3, 3, 80, 96);
  qwen2.qkv_bias = true;
  models["qwen2"] = make_tiny(qwen2, false, 3);
  ModelSpec qwen3 = shape(96, 4, 1, 128, 128);
  qwen3.qk_norm = true;
  models["qwen3"] = make_tiny(qwen3, true, 4);
  ModelSpec gemma = shape(96, 2, 1, 256, 160, 3);
  gemma.qk_norm = gemma.post_norms = true;
  gemma.activation = Activation::gelu_tanh;
  gemma.embedding_scale = std::sqrt(96.f);
  gemma.windows = {48, 0, 48};
  gemma.ropes = {0, 1, 0};
  models["gemma3"] = make_tiny(gemma, true, 5);
  ModelSpec rest = shape(50, 40, 1, 32, 90);  // more heads in a group than an item has rows
  rest.qkv_bias = rest.output_bias = rest.mlp_bias = true;
  models["biases"] = make_tiny(rest, false, 6);
  return models;
}

}  // namespace headrace
