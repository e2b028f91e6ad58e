// The phases of a step, walked through by every thread. What a phase reads and writes it touches
// only inside its units, see threads.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "float_mode.h"
#include "model_state.h"
#include "ticks.h"

namespace headrace {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Rows in a unit of a phase over rows.
int rows_a_unit(int rows, int threads) { return std::clamp(rows / (threads * 8), 1, 8); }

// Rows that a panel is multiplied with at a time: as few pieces as keep all threads busy.
int row_chunk(int rows, int panels, int threads) {
  int chunks = ceil_div(rows, kRowChunk);
  while (chunks * panels < 4 * threads && ceil_div(rows, chunks) > 2 * kPanel) chunks *= 2;
  return round_up(ceil_div(rows, chunks), kPanel);
}

// A norm on the way into a product, with what happens to the residual stream before it.
struct NormedInput {
  const float* weight;
  const float* post = nullptr;  // x += norm of y by this first
  bool embed = false;           // x = the tokens' embeddings first
  bool changes_x() const { return post || embed; }
};

class Walk {
 public:
  Walk(Model::State& state, int thread)
      : s_(state),
        k_(state.kernels),
        thread_(thread),
        mine_(state.threads[static_cast<size_t>(thread)]),
        x_(state.x),
        other_x_(state.other_x),
        rows_(state.input.num_tokens) {}

  void run() {
    const FloatMode mode;
    k_.begin();
    NormedInput input{nullptr, nullptr, true};
    for (const Layer& layer : s_.layers) {
      input.weight = layer.norm1;
      if (!attend(layer, input)) break;
      multiply_attended(layer);
      multiply_gate_up(layer);
      multiply_down(layer);
      input = {nullptr, layer.post2};
    }
    if (s_.input.num_rows) {
      input.weight = s_.norm;
      multiply_head(input);
      combine_head();
    }
    k_.end();
  }

 private:
  template <class F>
  void phase(uint64_t PartTicks::*part, int total, F&& unit) {
    const uint64_t begin = ticks();
    aside_ = 0;
    const uint64_t idle = s_.team.phase(thread_, total, unit);
    if (thread_ != 0) return;
    s_.ticks.*part += idle - begin - aside_;
    s_.ticks.rows += aside_;
    s_.ticks.waiting += ticks() - idle;
  }

  template <class F>
  void row_phase(int rows, F&& one) {
    const int per = rows_a_unit(rows, s_.team.size());
    phase(&PartTicks::rows, ceil_div(rows, per), [&](int, int unit, int) {
      for (int r = unit * per; r < std::min(rows, (unit + 1) * per); r++) one(r);
    });
  }

  float* row_of(float* rows, int r) const { return rows + static_cast<size_t>(r) * s_.x_stride; }

  void embed(int token_id, float* out) const {
    const size_t size = static_cast<size_t>(s_.spec.hidden_size);
    const float scale = s_.spec.embedding_scale;
    if (!s_.embedding) {
      k_.read_column(s_.head, token_id, out);
      for (size_t i = 0; i < size; i++) out[i] *= scale;
      return;
    }
    const uint16_t* row = s_.embedding + static_cast<size_t>(token_id) * size;
    for (size_t i = 0; i < size; i++) out[i] = from_bf16(row[i]) * scale;
  }

  OperandKind kind_for(const Matrix& m) const { return k_.operand_kind(m.kind); }

  // x: the row's, changed where the input says so.
  void norm_row(const NormedInput& input, int r, float* x, OperandKind kind, const Operand& to,
                float* scales) const {
    const int size = s_.spec.hidden_size;
    const float eps = s_.spec.norm_eps;
    if (input.embed) embed(s_.input.token_ids[r], x);
    if (input.post) k_.add_norm(x, row_of(s_.y, r), input.post, size, eps);
    k_.norm(x, input.weight, size, eps, kind, row_in(to, r), scales + r);
  }

  static uint8_t* row_in(const Operand& operand, int r) {
    return const_cast<uint8_t*>(operand.data) + static_cast<size_t>(r) * operand.row_bytes;
  }

  Operand shared_operand(const Matrix& m) const {
    return {s_.operand, s_.operand_bytes(kind_for(m), m.k), s_.scales};
  }
  Operand private_operand(const Matrix& m) const {
    return {mine_.operand, s_.operand_bytes(kind_for(m), m.k), mine_.scales};
  }

  // Every panel with every row; `prepare(unit)` is called inside each unit, ahead of the product.
  template <class Prepare>
  void product(uint64_t PartTicks::*part, const Matrix& m, const Operand& a, const Epilogue& e,
               const Matrix* following, Prepare&& prepare) {
    const int panels = m.num_panels(), threads = s_.team.size();
    const int chunk = row_chunk(rows_, panels, threads);
    phase(part, ceil_div(rows_, chunk) * panels, [&](int, int unit, int next) {
      prepare(unit);
      const int begin = unit / panels * chunk;
      const uint8_t* ahead = next >= 0   ? panel_of(m, next % panels)
                             : following ? first_panel(*following)
                                         : nullptr;
      k_.product(m, unit % panels, a, begin, std::min(rows_, begin + chunk), e, ahead,
                 mine_.scratch);
    });
  }

  static const uint8_t* panel_of(const Matrix& m, int panel) {
    return m.panels + static_cast<size_t>(panel) * m.panel_bytes;
  }
  const uint8_t* first_panel(const Matrix& m) const {
    const int panel = Team::first_unit(m.num_panels(), s_.team.size(), thread_);
    return panel < m.num_panels() ? panel_of(m, panel) : nullptr;
  }

  // With few rows every thread prepares the operand once, in its first unit: as that unit is not
  // done, nobody has gone on to where what it reads would change.
  template <class PrepareAll>
  void private_product(uint64_t PartTicks::*part, const Matrix& m, const Operand& a,
                       const Epilogue& e, const Matrix* following, PrepareAll&& prepare_all) {
    bool ready = false;
    product(part, m, a, e, following, [&](int unit) {
      const uint64_t begin = ticks();
      if (!ready) prepare_all();
      if (!ready || unit == 0) first_unit(unit);
      if (!ready) aside_ += ticks() - begin;
      ready = true;
    });
  }

  // Whoever has the first unit writes the residual stream as it is from here on, to the other
  // buffer: the others still read this one.
  void first_unit(int unit) {
    if (unit == 0 && keep_x_) {
      std::memcpy(other_x_, mine_.x, static_cast<size_t>(rows_) * s_.x_stride * sizeof(float));
    }
  }

  void normed_product(uint64_t PartTicks::*part, const NormedInput& input, const Matrix& m,
                      const Epilogue& e, const Matrix* following) {
    const OperandKind kind = kind_for(m);
    if (!s_.few) {
      const Operand a = shared_operand(m);
      row_phase(rows_, [&](int r) { norm_row(input, r, row_of(x_, r), kind, a, s_.scales); });
      product(part, m, a, e, following, [](int) {});
      return;
    }
    const Operand a = private_operand(m);
    keep_x_ = input.changes_x();
    private_product(part, m, a, e, following, [&] {
      for (int r = 0; r < rows_; r++) {
        float* x = row_of(x_, r);
        if (keep_x_) {
          if (!input.embed) std::memcpy(row_of(mine_.x, r), x, s_.x_stride * sizeof(float));
          x = row_of(mine_.x, r);
        }
        norm_row(input, r, x, kind, a, mine_.scales);
      }
    });
    if (keep_x_) std::swap(x_, other_x_);
    keep_x_ = false;
  }

  // The product adds to the residual stream, or leaves it to the norm that follows.
  Epilogue residual(const float* bias) const {
    Epilogue e;
    e.kind = s_.spec.post_norms ? Epilogue::Kind::store : Epilogue::Kind::add;
    e.bias = bias;
    e.out = s_.spec.post_norms ? s_.y : x_;
    e.out_stride = s_.x_stride;
    return e;
  }

  HeadTransform transform(const Layer& layer, const float* norm, int token) const {
    const RopeTable& rope = s_.ropes[static_cast<size_t>(layer.rope)];
    const size_t place = static_cast<size_t>(s_.positions[static_cast<size_t>(token)]) *
                         static_cast<size_t>(s_.spec.head_dim / 2);
    return {s_.spec.head_dim, norm, s_.spec.norm_eps, rope.cos.data() + place,
            rope.sin.data() + place};
  }

  const float* head_of(int token, int head) const {
    return s_.qkv + static_cast<size_t>(token) * static_cast<size_t>(s_.qkv_stride) +
           static_cast<size_t>(head) * static_cast<size_t>(s_.spec.head_dim);
  }

  uint8_t* query_of(uint8_t* queries, int token, int head) const {
    return queries + (static_cast<size_t>(token) * static_cast<size_t>(s_.spec.num_heads) +
                      static_cast<size_t>(head)) *
                         s_.query_bytes;
  }

  // queries: of this token, [num_heads].
  void rotate(const Layer& layer, int token, int kv_head, uint8_t* queries) const {
    const HeadTransform t = transform(layer, layer.q_norm, token);
    for (int h = kv_head * s_.group; h < (kv_head + 1) * s_.group; h++) {
      k_.rotate_query(head_of(token, h), t, query_of(queries, 0, h));
    }
  }

  void store(const Layer& layer, int token, int kv_head) const {
    const StepInput& in = s_.input;
    const int position = s_.positions[static_cast<size_t>(token)];
    const size_t table = static_cast<size_t>(s_.sequences[static_cast<size_t>(token)]) *
                         static_cast<size_t>(in.table_stride);
    const int32_t block = in.block_tables[table + static_cast<size_t>(position / kBlock)];
    uint8_t* head = layer.kv + static_cast<size_t>(block) * s_.block_bytes +
                    static_cast<size_t>(kv_head) * s_.head_bytes;
    const int slot = position % kBlock, key = s_.spec.num_heads + kv_head;
    k_.store_key(head_of(token, key), transform(layer, layer.k_norm, token), s_.options.cache, slot,
                 head);
    k_.store_value(head_of(token, key + s_.spec.num_kv_heads), s_.spec.head_dim, s_.options.cache,
                   slot, head);
  }

  // Rotates the queries and stores the keys and values of all tokens.
  void rope_phase(const Layer& layer) {
    const int heads = s_.spec.num_kv_heads, total = rows_ * heads;
    const int per = std::clamp(total / (s_.team.size() * 8), 1, 8 * heads);
    phase(&PartTicks::rope, ceil_div(total, per), [&](int, int unit, int) {
      for (int i = unit * per; i < std::min(total, (unit + 1) * per); i++) {
        rotate(layer, i / heads, i % heads, query_of(s_.queries, i / heads, 0));
        store(layer, i / heads, i % heads);
      }
    });
  }

  // An item whose rows are all of its sequence's: it rotates their queries for itself and stores
  // the new keys that it reads.
  void rope_item(const Layer& layer, const AttentionItem& item) const {
    for (int i = 0; i < item.num_rows / s_.group; i++) {
      const int token = item.first_token + i;
      rotate(layer, token, item.kv_head, query_of(mine_.queries, i, 0));
      const int chunk = s_.positions[static_cast<size_t>(token)] / kChunk;
      if (chunk >= item.first_chunk && chunk < item.last_chunk) store(layer, token, item.kv_head);
    }
  }

  Attention attention(const Layer& layer) const {
    Attention a{};
    a.cache = s_.options.cache;
    a.head_dim = s_.spec.head_dim;
    a.width = s_.width;
    a.num_heads = s_.spec.num_heads;
    a.num_kv_heads = s_.spec.num_kv_heads;
    a.window = layer.window;
    a.scale = s_.spec.attention_scale;
    a.kv = layer.kv;
    a.block_bytes = s_.block_bytes;
    a.head_bytes = s_.head_bytes;
    a.queries = s_.queries;
    a.out = s_.attended.rows(s_.takes_wide(layer.o));
    return a;
  }

  // False when nothing is wanted of what follows. After the last layer's keys only the wanted rows
  // go on.
  bool attend(const Layer& layer, const NormedInput& input) {
    Epilogue e;
    e.bias = layer.qkv_bias;
    e.out = s_.qkv;
    e.out_stride = static_cast<size_t>(s_.qkv_stride);
    normed_product(&PartTicks::qkv, input, layer.qkv, e, &layer.o);
    if (!s_.fuse_rope) rope_phase(layer);
    const bool last = &layer == &s_.layers.back();
    if (last && s_.input.num_rows == 0) return false;
    attention_phase(layer, last && !s_.all_rows);
    return true;
  }

  void attention_phase(const Layer& layer, bool gather) {
    const auto items = s_.plan_of(layer).items();
    const int total = static_cast<int>(items.size());
    phase(&PartTicks::attention, total + gather, [&](int, int unit, int next) {
      if (unit == total) return gather_x();
      const AttentionWork& work = items[static_cast<size_t>(unit)];
      const bool known = next >= 0 && next < total;
      attend_item(layer, work, known ? &items[static_cast<size_t>(next)].item : nullptr);
    });
    if (!gather) return;
    std::swap(x_, other_x_);
    rows_ = s_.input.num_rows;
  }

  void attend_item(const Layer& layer, const AttentionWork& work, const AttentionItem* next) const {
    AttentionItem item = work.item;
    Attention a = attention(layer);
    if (s_.fuse_rope) {
      rope_item(layer, item);
      a.queries = mine_.queries;
      a.out.data += static_cast<size_t>(item.first_token) * a.out.row_bytes;
      item.first_token = 0;
    } else {
      a.queries = query_of(s_.queries, work.token_shift, 0);
    }
    k_.attend(a, item, next, mine_.scratch);
  }

  void gather_x() const {
    for (int r = 0; r < s_.input.num_rows; r++) {
      std::memcpy(row_of(other_x_, r), row_of(x_, s_.input.rows[r]), s_.x_stride * sizeof(float));
    }
  }

  void merge(const Attention& a, const SplitRow& row) const {
    k_.merge(a, row.row, row.head, row.partials, row.stride, row.count);
  }

  void multiply_attended(const Layer& layer) {
    const bool wide = s_.takes_wide(layer.o);
    const auto splits = s_.plan_of(layer).splits();
    const Epilogue e = residual(layer.o_bias);
    if (s_.few) {
      const Rows own = mine_.attended.rows(wide);
      const Operand a = wide ? Operand{own.data, own.row_bytes, nullptr} : private_operand(layer.o);
      private_product(&PartTicks::output, layer.o, a, e, &layer.gate_up, [&] {
        Attention to = attention(layer);
        to.out = own;
        for (const SplitRow& row : splits) merge(to, row);
        if (!wide) quantise_rows(layer.o, own, a, mine_.scales);
      });
      return;
    }
    if (!splits.empty()) {
      const Attention to = attention(layer);
      const int total = static_cast<int>(splits.size()), per = rows_a_unit(total, s_.team.size());
      phase(&PartTicks::attention, ceil_div(total, per), [&](int, int unit, int) {
        for (int i = unit * per; i < std::min(total, (unit + 1) * per); i++) {
          merge(to, splits[static_cast<size_t>(i)]);
        }
      });
    }
    shared_product(&PartTicks::output, layer.o, s_.attended.rows(wide), e, &layer.gate_up);
  }

  void quantise_row(const Matrix& m, const Rows& from, int r, const Operand& to,
                    float* scales) const {
    const uint8_t* row = from.data + static_cast<size_t>(r) * from.row_bytes;
    k_.quantise(reinterpret_cast<const float*>(row), m.k, kind_for(m), row_in(to, r), scales + r);
  }

  void quantise_rows(const Matrix& m, const Rows& from, const Operand& to, float* scales) const {
    for (int r = 0; r < rows_; r++) quantise_row(m, from, r, to, scales);
  }

  // Of rows that all threads share, quantised first where the matrix wants that.
  void shared_product(uint64_t PartTicks::*part, const Matrix& m, const Rows& from,
                      const Epilogue& e, const Matrix* following) {
    if (s_.takes_wide(m)) {
      product(part, m, {from.data, from.row_bytes, nullptr}, e, following, [](int) {});
      return;
    }
    if (s_.few) {
      const Operand a = private_operand(m);
      private_product(part, m, a, e, following, [&] { quantise_rows(m, from, a, mine_.scales); });
      return;
    }
    const Operand a = shared_operand(m);
    row_phase(rows_, [&](int r) { quantise_row(m, from, r, a, s_.scales); });
    product(part, m, a, e, following, [](int) {});
  }

  void multiply_gate_up(const Layer& layer) {
    Epilogue e;
    e.kind = Epilogue::Kind::glu;
    e.activation = s_.spec.activation;
    e.bias = layer.gate_up_bias;
    e.rows = s_.hidden.rows(s_.takes_wide(layer.down));
    normed_product(&PartTicks::gate_up, {layer.norm2, layer.post1}, layer.gate_up, e, &layer.down);
  }

  void multiply_down(const Layer& layer) {
    const bool last = &layer == &s_.layers.back();
    shared_product(&PartTicks::down, layer.down, s_.hidden.rows(s_.takes_wide(layer.down)),
                   residual(layer.down_bias), last ? &s_.head : &(&layer + 1)->qkv);
  }

  void multiply_head(const NormedInput& input) {
    Epilogue e;
    e.kind = Epilogue::Kind::head;
    e.want_sum_exp = s_.output.log_sum_exp != nullptr;
    e.out = s_.output.logits;
    e.out_stride = static_cast<size_t>(s_.spec.vocab_size);
    e.heads = s_.head_panels;
    e.masks = s_.input.masks;
    normed_product(&PartTicks::head, input, s_.head, e, &s_.layers.front().qkv);
  }

  // In the panels' order, so that it does not matter who computed them.
  void combine_head() {
    phase(&PartTicks::head, rows_, [&](int, int r, int) {
      const int panels = s_.head.num_panels();
      const HeadPanel* head = s_.head_panels + static_cast<size_t>(r) * static_cast<size_t>(panels);
      const HeadPanel* best = head;
      for (const HeadPanel* p = head; p < head + panels; p++) {
        if (p->max > best->max || std::isnan(p->max)) best = p;
      }
      s_.output.argmax[r] = best->argmax;
      s_.output.max[r] = best->max;
      if (s_.output.log_sum_exp) s_.output.log_sum_exp[r] = log_sum_exp(head, panels, best->max);
      if (s_.input.sampling) sample(r, head);
    });
  }

  void sample(int r, const HeadPanel* head) const {
    const StepOutput& out = s_.output;
    const size_t row = static_cast<size_t>(r), vocab = static_cast<size_t>(s_.spec.vocab_size);
    const uint32_t* masks = s_.input.masks;
    const RowLogits logits{out.logits + row * vocab, head,
                           masks ? masks + row * ((vocab + 31) / 32) : nullptr,
                           out.log_sum_exp ? out.log_sum_exp[r] : 0};
    s_.samplers[static_cast<size_t>(thread_)].sample(*s_.input.sampling, r, logits, out.sampling);
  }

  static float log_sum_exp(const HeadPanel* head, int panels, float max) {
    if (max == -std::numeric_limits<float>::infinity()) return max;
    float sum = 0;
    for (int p = 0; p < panels; p++) sum += head[p].sum_exp * std::exp(head[p].max - max);
    return max + std::log(sum);
  }

  Model::State& s_;
  const Kernels& k_;
  const int thread_;
  Private& mine_;
  float *x_, *other_x_;  // the residual stream, and room for the next
  int rows_;
  bool keep_x_ = false;
  uint64_t aside_ = 0;  // ticks of a phase that belong to `rows`
};

}  // namespace

void run_step(Model::State& state) {
  state.team.run([&](int thread) { Walk(state, thread).run(); });
}

}  // namespace headrace
