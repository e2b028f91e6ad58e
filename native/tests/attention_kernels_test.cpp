#include <doctest/doctest.h>

#include <cmath>

#include "kernels_fixture.h"

using namespace headrace;
using namespace headrace::testing;

namespace {

template <class F>
void for_each_kernels(F&& f) {
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(kernels->isa);
    kernels->begin();
    f(*kernels);
    kernels->end();
  }
}

// One sequence of `context` tokens, the last `num_new` of them new, in a cache with shuffled
// blocks.
struct Sequence {
  Sequence(const Kernels& kernels, CacheKind cache, int heads, int kv_heads, int dim, int context,
           int num_new, int window, uint64_t seed)
      : kernels(kernels),
        width(round_up(dim, kPad)),
        context(context),
        num_new(num_new),
        head_bytes(kernels.head_bytes(cache, width)),
        num_blocks((context + kBlock - 1) / kBlock + 2),
        cache_bytes(head_bytes * static_cast<size_t>(kv_heads * num_blocks)),
        queries(static_cast<size_t>(num_new * heads * width) * kernels.wide_bytes),
        out(static_cast<size_t>(num_new * heads * dim) * sizeof(float)) {
    Random random(seed);
    for (int b = 0; b < num_blocks; b++) table.push_back(b);
    for (size_t b = table.size() - 1; b > 0; b--) {
      std::swap(table[b], table[static_cast<size_t>(random.below(static_cast<int>(b) + 1))]);
    }
    std::memset(cache_bytes.data(), 0xff, cache_bytes.size());  // what nobody wrote is NaN
    a.cache = cache, a.head_dim = dim, a.width = width;
    a.num_heads = heads, a.num_kv_heads = kv_heads, a.window = window;
    a.scale = 3.f / std::sqrt(static_cast<float>(dim));
    a.kv = cache_bytes.data(), a.head_bytes = head_bytes;
    a.block_bytes = head_bytes * static_cast<size_t>(kv_heads);
    a.queries = queries.data();
    a.out = {out.data(), static_cast<size_t>(heads * dim) * sizeof(float), false};
    store(random);
  }

  int group() const { return a.num_heads / a.num_kv_heads; }
  int chunks(int last_position) const { return last_position / kChunk + 1; }

  // Every row in items of at most `rows`, kv head by kv head; clears what was there.
  std::vector<float> attend(int rows) const {
    std::memset(out.data(), 0, out.size());
    const Buffer scratch(kernels.scratch_bytes(64, width));
    for (int h = 0; h < a.num_kv_heads; h++) {
      for (int first = 0; first < num_new * group(); first += rows) {
        AttentionItem item = make_item(h, first, rows);
        AttentionItem next = make_item(h, 0, rows);
        kernels.attend(a, item, h % 2 ? &next : nullptr, scratch.data());
      }
    }
    return result();
  }

  // The same with each chunk apart.
  std::vector<float> attend_apart(int rows) const {
    std::memset(out.data(), 0, out.size());
    const Buffer scratch(kernels.scratch_bytes(64, width));
    const size_t row = static_cast<size_t>(width) + 16;
    for (int h = 0; h < a.num_kv_heads; h++) {
      for (int first = 0; first < num_new * group(); first += rows) {
        const AttentionItem whole = make_item(h, first, rows);
        const size_t stride = row * static_cast<size_t>(whole.num_rows);
        const Buffer partials(stride * static_cast<size_t>(whole.last_chunk) * sizeof(float));
        for (int c = whole.last_chunk - 1; c >= 0; c--) {
          AttentionItem part = whole;
          part.first_chunk = c, part.last_chunk = c + 1;
          part.partials = partials.as<float>() + stride * static_cast<size_t>(c);
          kernels.attend(a, part, nullptr, scratch.data());
        }
        for (int r = 0; r < whole.num_rows; r++) {
          kernels.merge(a, (first + r) / group(), h * group() + (first + r) % group(),
                        partials.as<float>() + row * static_cast<size_t>(r), stride,
                        whole.last_chunk);
        }
      }
    }
    return result();
  }

  // Plain attention in double precision: the largest difference over the largest value.
  double error(const std::vector<float>& got) const {
    double worst = 0;
    for (int t = 0; t < num_new; t++) {
      for (int h = 0; h < a.num_heads; h++) {
        const std::vector<double> want = plain(t, h);
        for (size_t i = 0; i < want.size(); i++) {
          const size_t place = static_cast<size_t>(t * a.num_heads + h) * want.size() + i;
          worst = std::max(worst, std::isnan(got[place]) ? 1e9 : std::fabs(got[place] - want[i]));
        }
      }
    }
    return worst;
  }

  const Kernels& kernels;
  int width, context, num_new;
  size_t head_bytes;
  int num_blocks;
  Buffer cache_bytes, queries, out;
  std::vector<int32_t> table;
  std::vector<float> keys, values;  // [token][kv head][dim]
  Attention a;

 private:
  AttentionItem make_item(int kv_head, int first, int rows) const {
    AttentionItem item{};
    item.block_table = table.data();
    item.num_computed = context - num_new;
    item.kv_head = kv_head;
    item.first_row = first;
    item.num_rows = std::min(rows, num_new * group() - first);
    item.last_chunk = chunks(item.num_computed + (first + item.num_rows - 1) / group());
    return item;
  }

  std::vector<float> result() const {
    return {out.as<float>(), out.as<float>() + out.size() / sizeof(float)};
  }

  void store(Random& random) {
    const size_t dim = static_cast<size_t>(a.head_dim);
    const std::vector<float> cos(dim / 2, 1.f), sin(dim / 2, 0.f);
    const HeadTransform t{a.head_dim, nullptr, 0, cos.data(), sin.data()};
    keys = random.reals(static_cast<size_t>(context * a.num_kv_heads) * dim);
    values = random.reals(keys.size());
    for (int token = 0; token < context; token++) {
      for (int h = 0; h < a.num_kv_heads; h++) {
        uint8_t* block =
            cache_bytes.data() +
            static_cast<size_t>(table[static_cast<size_t>(token / kBlock)]) * a.block_bytes +
            static_cast<size_t>(h) * head_bytes;
        const size_t place = static_cast<size_t>(token * a.num_kv_heads + h) * dim;
        kernels.store_key(keys.data() + place, t, a.cache, token % kBlock, block);
        kernels.store_value(values.data() + place, a.head_dim, a.cache, token % kBlock, block);
      }
    }
    for (int i = 0; i < num_new * a.num_heads; i++) {
      const std::vector<float> q = random.reals(dim);
      kernels.rotate_query(q.data(), t,
                           queries.data() + static_cast<size_t>(i * width) * kernels.wide_bytes);
    }
  }

  std::vector<double> plain(int token, int head) const {
    const size_t dim = static_cast<size_t>(a.head_dim);
    const uint8_t* q = queries.data() + static_cast<size_t>((token * a.num_heads + head) * width) *
                                            kernels.wide_bytes;
    const int position = context - num_new + token;
    const int oldest = a.window ? std::max(0, position - a.window + 1) : 0;
    std::vector<double> out_row(dim, 0.0), scores;
    double most = -1e30, total = 0;
    const auto place = [&](int key) {
      return static_cast<size_t>(key * a.num_kv_heads + head / group()) * dim;
    };
    for (int key = oldest; key <= position; key++) {
      double s = 0;
      for (size_t i = 0; i < dim; i++) s += double{read_wide(kernels, q, i)} * keys[place(key) + i];
      scores.push_back(s * a.scale);
      most = std::max(most, scores.back());
    }
    for (int key = oldest; key <= position; key++) {
      const double p = std::exp(scores[static_cast<size_t>(key - oldest)] - most);
      total += p;
      for (size_t i = 0; i < dim; i++) out_row[i] += p * values[place(key) + i];
    }
    for (double& x : out_row) x /= total;
    return out_row;
  }
};

struct Case {
  int heads, kv_heads, dim, context, num_new, window;
};
constexpr Case kCases[] = {
    {1, 1, 64, 1, 1, 0},      {3, 1, 64, 33, 1, 0},     {9, 3, 64, 300, 5, 0},
    {2, 2, 80, 70, 40, 0},    {8, 1, 96, 257, 3, 0},    {4, 1, 128, 513, 2, 100},
    {5, 1, 256, 600, 9, 0},   {6, 1, 64, 700, 40, 256}, {7, 1, 64, 256, 256, 0},
    {2, 1, 128, 290, 290, 1}, {4, 2, 64, 1100, 7, 33},
};
constexpr CacheKind kCaches[] = {CacheKind::bf16, CacheKind::i8};

}  // namespace

TEST_CASE("attention agrees with double precision for every head, window and context") {
  for_each_kernels([](const Kernels& kernels) {
    for (const CacheKind cache : kCaches) {
      for (const Case& c : kCases) {
        CAPTURE(static_cast<int>(cache));
        CAPTURE(c.dim);
        CAPTURE(c.context);
        const Sequence s(kernels, cache, c.heads, c.kv_heads, c.dim, c.context, c.num_new, c.window,
                         5);
        CHECK(s.error(s.attend(kQueryRows)) < (cache == CacheKind::bf16 ? 1.5e-2 : 4e-2));
      }
    }
  });
}

TEST_CASE("attention has the same bits however its rows are split and its chunks merged") {
  for_each_kernels([](const Kernels& kernels) {
    for (const CacheKind cache : kCaches) {
      for (const Case& c : kCases) {
        CAPTURE(static_cast<int>(cache));
        CAPTURE(c.dim);
        CAPTURE(c.context);
        const Sequence s(kernels, cache, c.heads, c.kv_heads, c.dim, c.context, c.num_new, c.window,
                         6);
        const std::vector<float> whole = s.attend(kQueryRows);
        for (const int rows : {1, 3, 7, 16}) CHECK(s.attend(rows) == whole);
        for (const int rows : {1, 5, 32}) CHECK(s.attend_apart(rows) == whole);
      }
    }
  });
}

TEST_CASE("a prompt in one step and its tokens one by one give the same bits") {
  for_each_kernels([](const Kernels& kernels) {
    for (const CacheKind cache : kCaches) {
      const int context = 300, dim = 64, heads = 3;
      Sequence s(kernels, cache, heads, 1, dim, context, context, 90, 7);
      const std::vector<float> whole = s.attend(kQueryRows);
      const Buffer scratch(kernels.scratch_bytes(64, s.width));
      for (int t = 0; t < context; t++) {
        AttentionItem item{};
        item.block_table = s.table.data();
        item.first_token = t;
        item.num_computed = t;
        item.num_rows = heads;
        item.last_chunk = t / kChunk + 1;
        kernels.attend(s.a, item, nullptr, scratch.data());
      }
      const float* out = s.out.as<float>();
      CHECK(std::vector<float>(out, out + whole.size()) == whole);
    }
  });
}

TEST_CASE("attention writes wide rows for a wide product") {
  for_each_kernels([](const Kernels& kernels) {
    Sequence s(kernels, CacheKind::bf16, 2, 1, 80, 40, 1, 0, 8);
    const std::vector<float> floats = s.attend(2);
    const Buffer wide(160 * kernels.wide_bytes);
    s.a.out = {wide.data(), wide.size(), true};
    s.attend(2);
    for (size_t i = 0; i < floats.size(); i++) {
      const float want = kernels.wide_bytes == 2 ? from_bf16(to_bf16(floats[i])) : floats[i];
      REQUIRE(read_wide(kernels, wide.data(), i) == want);
    }
  });
}

TEST_CASE("a query of NaN neither crashes nor touches the other rows") {
  for_each_kernels([](const Kernels& kernels) {
    const Sequence s(kernels, CacheKind::bf16, 4, 1, 64, 300, 3, 0, 9);
    const std::vector<float> before = s.attend(12);
    for (size_t i = 0; i < 64; i++) write_wide(kernels, s.queries.data(), i, std::nanf(""));
    const std::vector<float> after = s.attend(12);
    for (size_t i = 64; i < before.size(); i++) REQUIRE(after[i] == before[i]);
  });
}
