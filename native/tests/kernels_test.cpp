#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels_fixture.h"

using namespace headrace;
using namespace headrace::testing;

namespace {

struct Shape {
  int rows, n, k;
};
constexpr Shape kShapes[] = {{1, 32, 64},  {1, 40, 576},  {2, 96, 100}, {3, 33, 1},
                             {5, 64, 640}, {6, 31, 257},  {7, 32, 129}, {13, 48, 320},
                             {17, 64, 63}, {40, 40, 200}, {512, 32, 96}};

template <class F>
void for_each_kernels(F&& f) {
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(kernels->isa);
    f(*kernels);
  }
}

Buffer scratch_for(const Kernels& kernels, int k) { return Buffer(kernels.scratch_bytes(k, 64)); }

// All rows and panels of a product, rows in the given pieces.
void multiply(const Kernels& kernels, const Packed& b, const Operands& a, const Epilogue& e,
              const std::vector<int>& pieces) {
  const Buffer scratch = scratch_for(kernels, b.matrix.k);
  kernels.begin();
  for (int p = 0; p < b.matrix.num_panels(); p++) {
    const uint8_t* next = p + 1 < b.matrix.num_panels()
                              ? b.matrix.panels + static_cast<size_t>(p + 1) * b.matrix.panel_bytes
                              : nullptr;
    int begin = 0;
    for (const int piece : pieces) {
      kernels.product(b.matrix, p, a.operand(), begin, begin + piece, e, next, scratch.data());
      begin += piece;
    }
  }
  kernels.end();
}

std::vector<float> stored(const Kernels& kernels, const Packed& b, const Operands& a, int rows,
                          const std::vector<int>& pieces) {
  const size_t stride = up(static_cast<size_t>(b.matrix.n), kPanel);
  std::vector<float> out(static_cast<size_t>(rows) * stride, -7.f);
  Epilogue e;
  e.out = out.data();
  e.out_stride = stride;
  multiply(kernels, b, a, e, pieces);
  return out;
}

}  // namespace

TEST_CASE("a packed column reads back for every quant and every place") {
  for_each_kernels([](const Kernels& kernels) {
    for (const WeightKind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const int k = 300, groups = (k + kGroup - 1) / kGroup;
      const bool grouped = kind == WeightKind::q8 || kind == WeightKind::q4;
      const int scales_each = grouped ? groups : 1;
      Random random(3);
      std::vector<float> values = random.reals(static_cast<size_t>(kPanel) * k);
      std::vector<float> scales(static_cast<size_t>(kPanel) * scales_each), minimums(scales.size());
      for (float& s : scales) s = 0.01f + 0.005f * random.real();
      for (float& m : minimums) m = 0.1f * random.real();
      std::vector<int8_t> quants(values.size());
      for (size_t i = 0; i < quants.size(); i++) {  // 257 and 300 share no factor with 255 or 16
        quants[i] = static_cast<int8_t>(kind == WeightKind::q4 ? static_cast<int>(i % 17 % 16)
                                                               : static_cast<int>(i % 255) - 127);
      }
      const Buffer panel(kernels.panel_bytes(kind, k));
      REQUIRE(panel.size() % 64 == 0);
      kernels.pack(kind, {k, values.data(), quants.data(), scales.data(), minimums.data()},
                   panel.data());
      Matrix m;
      m.kind = kind, m.n = kPanel, m.k = k, m.panels = panel.data(), m.panel_bytes = panel.size();
      std::vector<float> out(k);
      for (int c = 0; c < kPanel; c++) {
        kernels.read_column(m, c, out.data());
        for (int i = 0; i < k; i++) {
          const size_t place = static_cast<size_t>(c * k + i);
          const size_t group = static_cast<size_t>(c * scales_each + (grouped ? i / kGroup : 0));
          if (kind == WeightKind::bf16) {
            REQUIRE(out[static_cast<size_t>(i)] == from_bf16(to_bf16(values[place])));
            continue;
          }
          const float low = kind == WeightKind::q4 ? minimums[group] : 0.f;
          const float want = scales[group] * quants[place] + low;
          const float size = std::fabs(scales[group] * quants[place]) + std::fabs(low);
          REQUIRE(std::fabs(out[static_cast<size_t>(i)] - want) <= size / (grouped ? 100 : 1e6f));
        }
      }
    }
  });
}

TEST_CASE("a product agrees with double precision for every kind and shape") {
  for_each_kernels([](const Kernels& kernels) {
    for (const WeightKind kind : kKinds) {
      for (const Shape s : kShapes) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(s.rows);
        CAPTURE(s.n);
        CAPTURE(s.k);
        const Packed b(kernels, kind, s.n, s.k, 5);
        const Operands a(kernels, kind, s.rows, s.k, 6);
        const std::vector<float> out = stored(kernels, b, a, s.rows, {s.rows});
        const size_t stride = up(static_cast<size_t>(s.n), kPanel);
        for (int r = 0; r < s.rows; r++) {
          for (int c = 0; c < s.n; c++) {
            const Sum want = exact(a, r, b, c);
            const float got = out[static_cast<size_t>(r) * stride + static_cast<size_t>(c)];
            REQUIRE(std::fabs(got - want.value) <= 1e-5 * want.size);
          }
          for (size_t c = static_cast<size_t>(s.n); c < stride; c++) {
            REQUIRE(out[static_cast<size_t>(r) * stride + c] == 0.f);
          }
        }
      }
    }
  });
}

TEST_CASE("a row's product has the same bits in any company") {
  for_each_kernels([](const Kernels& kernels) {
    for (const WeightKind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const int rows = 260, n = 64, k = 330;
      const Packed b(kernels, kind, n, k, 8);
      const Operands a(kernels, kind, rows, k, 9);
      const std::vector<float> whole = stored(kernels, b, a, rows, {rows});
      CHECK(stored(kernels, b, a, rows, std::vector<int>(static_cast<size_t>(rows), 1)) == whole);
      for (uint64_t seed = 0; seed < 12; seed++) {
        Random random(seed);
        std::vector<int> pieces;
        for (int left = rows; left > 0; left -= pieces.back()) {
          const int most = seed < 6 ? 16 : 100;
          pieces.push_back(std::min(left, 1 + random.below(most)));
        }
        CHECK(stored(kernels, b, a, rows, pieces) == whole);
      }
    }
  });
}

TEST_CASE("the greatest numbers of all do not overflow a chunk's sum") {
  for_each_kernels([](const Kernels& kernels) {
    const int k = 2 * kScaleChunk, rows = 7;
    const std::vector<int8_t> quants(static_cast<size_t>(kPanel * k), -127);
    const std::vector<float> scales(kPanel, 1.f);
    const Buffer panel(kernels.panel_bytes(WeightKind::i8, k));
    kernels.pack(WeightKind::i8, {k, nullptr, quants.data(), scales.data(), nullptr}, panel.data());
    Packed b(kernels, WeightKind::i8, kPanel, k, 1);
    std::memcpy(b.bytes.data(), panel.data(), panel.size());
    Operands a(kernels, WeightKind::i8, rows, k, 2);
    const std::vector<float> ones(static_cast<size_t>(k), 1.f);
    for (int r = 0; r < rows; r++) a.write(kernels, r, ones);
    for (const float sum : stored(kernels, b, a, rows, {rows})) {
      REQUIRE(std::fabs(sum + 127.f * k) <= 1e-5f * 127 * k);
    }
  });
}

TEST_CASE("the greatest weights and activations overflow no integer sum") {
  for_each_kernels([](const Kernels& kernels) {
    for (const WeightKind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const int rows = 7, k = 2 * kScaleChunk;
      const auto quant = static_cast<int8_t>(kind == WeightKind::q4   ? 15
                                             : kind == WeightKind::q8 ? -128
                                                                      : -127);
      const std::vector<float> values(static_cast<size_t>(kPanel) * k, quant);
      const std::vector<int8_t> quants(values.size(), quant);
      const std::vector<float> scales(values.size() / kGroup, 1.f), minimums(scales.size(), -8.f);
      Packed b(kernels, kind, kPanel, k, 1);
      kernels.pack(kind, {k, values.data(), quants.data(), scales.data(), minimums.data()},
                   b.bytes.data());
      Operands a(kernels, kind, rows, k, 1);
      for (int r = 0; r < rows; r++) {
        a.write(kernels, r, std::vector<float>(static_cast<size_t>(k), r % 2 ? -3.f : 3.f));
      }
      const std::vector<float> out = stored(kernels, b, a, rows, {rows});
      const float weight = kind == WeightKind::q4 ? 15.f - 8.f : quant;
      for (size_t i = 0; i < out.size(); i++) {
        const float want = weight * static_cast<float>(k) * (i / kPanel % 2 ? -3.f : 3.f);
        REQUIRE(std::fabs(out[i] - want) <= 1e-5f * std::fabs(want));
      }
    }
  });
}

TEST_CASE("a bias and what is there already are added") {
  for_each_kernels([](const Kernels& kernels) {
    const int rows = 9, n = 50, k = 128;
    const Packed b(kernels, WeightKind::i8, n, k, 1);
    const Operands a(kernels, WeightKind::i8, rows, k, 2);
    const std::vector<float> plain = stored(kernels, b, a, rows, {rows});
    Random random(3);
    const std::vector<float> bias = random.reals(64);
    std::vector<float> out(plain.size(), 2.5f);
    Epilogue e;
    e.kind = Epilogue::Kind::add;
    e.bias = bias.data();
    e.out = out.data();
    e.out_stride = 64;
    multiply(kernels, b, a, e, {4, 5});
    for (size_t i = 0; i < out.size(); i++) REQUIRE(out[i] == 2.5f + (plain[i] + bias[i % 64]));
  });
}

TEST_CASE("a gated unit activates the first half of a panel") {
  for_each_kernels([](const Kernels& kernels) {
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
      for (const bool wide : {true, false}) {
        const int rows = 8, n = 64, k = 96;
        const Packed b(kernels, WeightKind::bf16, n, k, 4);
        const Operands a(kernels, WeightKind::bf16, rows, k, 5);
        const std::vector<float> plain = stored(kernels, b, a, rows, {rows});
        const size_t row_bytes = 64 * (wide ? kernels.wide_bytes : sizeof(float));
        const Buffer out(rows * row_bytes);
        Epilogue e;
        e.kind = Epilogue::Kind::glu;
        e.activation = activation;
        e.rows = {out.data(), row_bytes, wide};
        multiply(kernels, b, a, e, {rows});
        for (int r = 0; r < rows; r++) {
          for (int c = 0; c < n / 2; c++) {
            const float* panel = plain.data() + r * 64 + c / 16 * 32;
            const double x = panel[c % 16], up_value = panel[16 + c % 16];
            const double want =
                (activation == Activation::silu ? silu(x) : gelu_tanh(x)) * up_value;
            const uint8_t* row = out.data() + static_cast<size_t>(r) * row_bytes;
            const float got = wide ? read_wide(kernels, row, static_cast<size_t>(c))
                                   : reinterpret_cast<const float*>(row)[c];
            const double limit = wide && kernels.wide_bytes == 2 ? 5e-3 : 2e-6;
            REQUIRE(std::fabs(got - want) <= limit * (std::fabs(want) + 1));
          }
        }
      }
    }
  });
}

TEST_CASE("the head finds the largest allowed logit, the lowest column on a tie") {
  for_each_kernels([](const Kernels& kernels) {
    const int rows = 7, n = 83, k = 64, panels = 3;
    const Packed b(kernels, WeightKind::i8, n, k, 4);
    const Operands a(kernels, WeightKind::i8, rows, k, 5);
    const std::vector<float> plain = stored(kernels, b, a, rows, {rows});
    Random random(6);
    std::vector<uint32_t> masks(static_cast<size_t>(rows) * panels);
    for (uint32_t& m : masks) m = random.bits() * 2 ^ random.bits();
    masks[4] = 0;
    for (const uint32_t* mask : std::initializer_list<const uint32_t*>{nullptr, masks.data()}) {
      std::vector<HeadPanel> heads(static_cast<size_t>(rows) * panels);
      std::vector<float> logits(static_cast<size_t>(rows) * n + 64, 9.f);
      Epilogue e;
      e.kind = Epilogue::Kind::head;
      e.want_sum_exp = true;
      e.heads = heads.data();
      e.masks = mask;
      e.out = logits.data();
      e.out_stride = n;
      multiply(kernels, b, a, e, {3, 4});
      for (int r = 0; r < rows; r++) {
        for (int p = 0; p < panels; p++) {
          const HeadPanel& got = heads[static_cast<size_t>(r * panels + p)];
          float most = -std::numeric_limits<float>::infinity();
          int best = p * kPanel;
          double total = 0;
          const auto logit = [&](int c) { return plain[static_cast<size_t>(r * 96 + c)]; };
          const auto allowed = [&](int c) { return !mask || mask[r * panels + p] >> c % 32 & 1; };
          const int end = std::min(n, (p + 1) * kPanel);
          for (int c = p * kPanel; c < end; c++) {
            if (allowed(c) && logit(c) > most) most = logit(c), best = c;
          }
          for (int c = p * kPanel; c < end; c++) {
            if (allowed(c)) total += std::exp(static_cast<double>(logit(c)) - most);
          }
          REQUIRE(got.max == most);
          REQUIRE(got.argmax == best);
          REQUIRE(std::fabs(got.sum_exp - total) <= 1e-5 * total);
        }
        for (int c = 0; c < n; c++) {
          REQUIRE(logits[static_cast<size_t>(r * n + c)] == plain[static_cast<size_t>(r * 96 + c)]);
        }
      }
      REQUIRE(logits[static_cast<size_t>(rows) * n] == 9.f);
    }
    // Equal columns everywhere: zeros.
    Packed zeros(kernels, WeightKind::i8, n, k, 4);
    std::memset(zeros.bytes.data(), 0, zeros.bytes.size());
    std::vector<HeadPanel> heads(panels);
    Epilogue e;
    e.kind = Epilogue::Kind::head;
    e.heads = heads.data();
    multiply(kernels, zeros, a, e, {1});
    for (int p = 0; p < panels; p++) CHECK(heads[static_cast<size_t>(p)].argmax == p * kPanel);
  });
}

TEST_CASE("a row of NaN neither crashes nor touches its neighbours") {
  for_each_kernels([](const Kernels& kernels) {
    const int rows = 14, n = 64, k = 128;
    const Packed b(kernels, WeightKind::i8, n, k, 4);
    Operands a(kernels, WeightKind::i8, rows, k, 5);
    const std::vector<float> plain = stored(kernels, b, a, rows, {rows});
    a.write(kernels, 1, std::vector<float>(static_cast<size_t>(k), std::nanf("")));
    const std::vector<float> out = stored(kernels, b, a, rows, {rows});
    for (size_t i = 0; i < out.size(); i++) {
      if (i / 64 == 1) {
        REQUIRE(std::isnan(out[i]));
      } else {
        REQUIRE(out[i] == plain[i]);
      }
    }
    std::vector<HeadPanel> heads(static_cast<size_t>(rows) * 2);
    Epilogue e;
    e.kind = Epilogue::Kind::head;
    e.want_sum_exp = true;
    e.heads = heads.data();
    multiply(kernels, b, a, e, {rows});
    for (size_t i = 0; i < heads.size(); i++) {
      CHECK((heads[i].argmax >= 0 && heads[i].argmax < n));
      CHECK(std::isnan(heads[i].max) == (i / 2 == 1));
    }
  });
}

TEST_CASE("one logit of NaN makes its panel's largest NaN, unless it is masked") {
  for_each_kernels([](const Kernels& kernels) {
    const int n = 83, k = 64, panels = 3;
    const Packed b(kernels, WeightKind::i8, n, k, 4);
    const Operands a(kernels, WeightKind::i8, 1, k, 5);
    for (int bad = 0; bad < n; bad++) {
      std::vector<float> bias(kPanel * panels);
      bias[static_cast<size_t>(bad)] = std::nanf("");
      std::vector<uint32_t> masks(panels, ~0u);
      masks[static_cast<size_t>(bad / kPanel)] ^= 1u << bad % kPanel;
      for (const uint32_t* mask : std::initializer_list<const uint32_t*>{nullptr, masks.data()}) {
        std::vector<HeadPanel> heads(panels);
        Epilogue e;
        e.kind = Epilogue::Kind::head;
        e.bias = bias.data();
        e.heads = heads.data();
        e.masks = mask;
        multiply(kernels, b, a, e, {1});
        for (int p = 0; p < panels; p++) {
          const HeadPanel& got = heads[static_cast<size_t>(p)];
          REQUIRE(std::isnan(got.max) == (!mask && p == bad / kPanel));
          REQUIRE((got.argmax >= p * kPanel && got.argmax < n));
        }
      }
    }
  });
}
