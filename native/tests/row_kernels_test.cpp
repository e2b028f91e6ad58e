#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels_fixture.h"

using namespace headrace;
using namespace headrace::testing;

namespace {

constexpr int kLengths[] = {1, 7, 64, 100, 576, 577, 1536};

template <class F>
void for_each_kernels(F&& f) {
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(kernels->isa);
    kernels->begin();
    f(*kernels);
    kernels->end();
  }
}

double rms(const float* x, int k, double eps) {
  double total = 0;
  for (int i = 0; i < k; i++) total += static_cast<double>(x[i]) * x[i];
  return std::sqrt(total / k + eps);
}

double wide_limit(const Kernels& kernels) { return kernels.wide_bytes == 2 ? 1.0 / 256 : 2e-6; }

// The answer of rotate_query, in double precision.
std::vector<double> rotated(const float* x, const HeadTransform& t) {
  std::vector<double> in(x, x + t.dim), out(static_cast<size_t>(t.dim));
  if (t.norm) {
    const double r = rms(x, t.dim, t.eps);
    for (int i = 0; i < t.dim; i++) in[static_cast<size_t>(i)] *= t.norm[i] / r;
  }
  const size_t half = static_cast<size_t>(t.dim / 2);
  for (size_t i = 0; i < half; i++) {
    out[i] = in[i] * t.cos[i] - in[i + half] * t.sin[i];
    out[i + half] = in[i + half] * t.cos[i] + in[i] * t.sin[i];
  }
  return out;
}

}  // namespace

TEST_CASE("a norm divides by the root mean square and pads with zeros") {
  for_each_kernels([](const Kernels& kernels) {
    for (const int k : kLengths) {
      CAPTURE(k);
      Random random(static_cast<uint64_t>(k));
      const auto size = static_cast<size_t>(k);
      const std::vector<float> x = random.reals(size), weight = random.reals(size);
      const size_t padded = up(size, kPad);
      const Buffer out(padded * kernels.wide_bytes + 64);
      std::memset(out.data(), 0x55, out.size());
      float unused = 0;
      kernels.norm(x.data(), weight.data(), k, 1e-5f, OperandKind::wide, out.data(), &unused);
      const double r = rms(x.data(), k, 1e-5);
      for (size_t i = 0; i < padded; i++) {
        const double want = i < size ? static_cast<double>(x[i]) * weight[i] / r : 0;
        REQUIRE(std::fabs(read_wide(kernels, out.data(), i) - want) <=
                wide_limit(kernels) * std::fabs(want));
      }
      for (size_t i = padded * kernels.wide_bytes; i < out.size(); i++) {
        REQUIRE(out.data()[i] == 0x55);
      }
    }
  });
}

TEST_CASE("quantised rows use the whole range and pad with zeros") {
  for_each_kernels([](const Kernels& kernels) {
    for (const int k : kLengths) {
      for (const bool normed : {false, true}) {
        CAPTURE(k);
        Random random(static_cast<uint64_t>(k));
        const auto size = static_cast<size_t>(k);
        const std::vector<float> x = random.reals(size), weight = random.reals(size);
        const size_t padded = up(size, kPad);
        const Buffer out(padded + 64);
        std::memset(out.data(), 0x55, out.size());
        auto* quants = out.as<int8_t>();
        float scale = -1;
        if (normed) {
          kernels.norm(x.data(), weight.data(), k, 1e-5f, OperandKind::int8, quants, &scale);
        } else {
          kernels.quantise(x.data(), k, OperandKind::int8, quants, &scale);
        }
        const double r = normed ? rms(x.data(), k, 1e-5) : 1;
        int most = 0;
        for (size_t i = 0; i < padded; i++) {
          const double want = i < size ? x[i] * (normed ? weight[i] : 1.0) / r : 0;
          REQUIRE(std::fabs(scale * quants[i] - want) <= 0.5001 * scale);
          most = std::max(most, std::abs(static_cast<int>(quants[i])));
        }
        CHECK(most == 127);
        for (size_t i = padded; i < out.size(); i++) REQUIRE(out.data()[i] == 0x55);
      }
    }
  });
}

TEST_CASE("int16 rows use the whole range of every chunk and hold the sums of their groups") {
  for_each_kernels([](const Kernels& kernels) {
    for (const int k : kLengths) {
      for (const bool normed : {false, true}) {
        CAPTURE(k);
        Random random(static_cast<uint64_t>(k));
        const auto size = static_cast<size_t>(k);
        std::vector<float> x = random.reals(size);
        const std::vector<float> weight = random.reals(size);
        for (size_t i = 0; i < size; i++) x[i] *= static_cast<float>(1 + i / kScaleChunk * 50);
        const Buffer out(Int16Row::bytes(k) + 64);
        std::memset(out.data(), 0x55, out.size());
        if (normed) {
          kernels.norm(x.data(), weight.data(), k, 1e-5f, OperandKind::int16, out.data(), nullptr);
        } else {
          kernels.quantise(x.data(), k, OperandKind::int16, out.data(), nullptr);
        }
        const Int16Row row(out.data(), k);
        const double r = normed ? rms(x.data(), k, 1e-5) : 1;
        const int padded = round_up(k, kPad);
        for (int first = 0; first < k; first += kScaleChunk) {
          const double scale = row.scales[first / kScaleChunk];
          int most = 0;
          for (int i = first; i < std::min(first + kScaleChunk, padded); i++) {
            const auto place = static_cast<size_t>(i);
            const double want = i < k ? x[place] * (normed ? weight[place] : 1.0) / r : 0;
            REQUIRE(std::fabs(scale * row.quants[i] - want) <= 0.51 * scale);
            most = std::max(most, std::abs(static_cast<int>(row.quants[i])));
          }
          REQUIRE(most == 32767);
        }
        for (int g = 0; g < padded / kGroup; g++) {
          int sum = 0;
          for (int i = g * kGroup; i < (g + 1) * kGroup; i++) sum += row.quants[i];
          REQUIRE(row.sums[g] == static_cast<float>(sum));
        }
        for (size_t i = Int16Row::bytes(k); i < out.size(); i++) REQUIRE(out.data()[i] == 0x55);
      }
    }
  });
}

TEST_CASE("a chunk of int16 too small for a scale is zero, and one not finite is NaN") {
  for_each_kernels([](const Kernels& kernels) {
    std::vector<float> x(3 * kScaleChunk, 1.f);
    for (size_t i = 0; i < kScaleChunk; i++) x[i] = i == 7 ? 1e-37f : 0.f;
    x[2 * kScaleChunk + 3] = std::numeric_limits<float>::infinity();
    const Buffer out(Int16Row::bytes(3 * kScaleChunk));
    kernels.quantise(x.data(), 3 * kScaleChunk, OperandKind::int16, out.data(), nullptr);
    const Int16Row row(out.data(), 3 * kScaleChunk);
    for (int i = 0; i < kScaleChunk; i++) {
      REQUIRE(row.quants[i] == 0);
      REQUIRE(row.quants[kScaleChunk + i] == 32767);
      REQUIRE(row.quants[2 * kScaleChunk + i] == 0);
    }
    CHECK(row.scales[0] < 1e-40f);
    CHECK(std::isnan(row.scales[2]));
  });
}

TEST_CASE("a row of zeros quantises to zeros") {
  for_each_kernels([](const Kernels& kernels) {
    const std::vector<float> x(64, 0.f);
    const Buffer out(64);
    float scale = -1;
    kernels.quantise(x.data(), 64, OperandKind::int8, out.data(), &scale);
    CHECK(scale == 0.f);
    for (size_t i = 0; i < 64; i++) CHECK(out.data()[i] == 0);
  });
}

TEST_CASE("the norm of a branch is added to the residual and nothing else changes") {
  for_each_kernels([](const Kernels& kernels) {
    for (const int k : kLengths) {
      Random random(static_cast<uint64_t>(k));
      const auto size = static_cast<size_t>(k);
      const std::vector<float> y = random.reals(size), weight = random.reals(size);
      std::vector<float> x = random.reals(size + 16);
      const std::vector<float> before = x;
      kernels.add_norm(x.data(), y.data(), weight.data(), k, 1e-6f);
      const double r = rms(y.data(), k, 1e-6);
      for (size_t i = 0; i < size; i++) {
        const double want = before[i] + static_cast<double>(y[i]) * weight[i] / r;
        REQUIRE(std::fabs(x[i] - want) <= 2e-6 * (std::fabs(want) + 1));
      }
      for (size_t i = size; i < x.size(); i++) REQUIRE(x[i] == before[i]);
    }
  });
}

TEST_CASE("a query is normed, rotated by halves and padded") {
  for_each_kernels([](const Kernels& kernels) {
    for (const int dim : {2, 64, 80, 96, 128, 256, 1024}) {
      for (const bool normed : {false, true}) {
        CAPTURE(dim);
        Random random(static_cast<uint64_t>(dim));
        const auto size = static_cast<size_t>(dim);
        const std::vector<float> q = random.reals(size), norm = random.reals(size);
        const std::vector<float> angles = random.reals(size / 2);
        std::vector<float> cos, sin;
        for (const float a : angles) cos.push_back(std::cos(a)), sin.push_back(std::sin(a));
        const HeadTransform t{dim, normed ? norm.data() : nullptr, 1e-6f, cos.data(), sin.data()};
        const size_t width = up(size, kPad);
        const Buffer out(width * kernels.wide_bytes + 64);
        std::memset(out.data(), 0x55, out.size());
        kernels.rotate_query(q.data(), t, out.data());
        const std::vector<double> want = rotated(q.data(), t);
        for (size_t i = 0; i < width; i++) {
          const double w = i < size ? want[i] : 0;
          REQUIRE(std::fabs(read_wide(kernels, out.data(), i) - w) <=
                  wide_limit(kernels) * (std::fabs(w) + 1));
        }
        for (size_t i = width * kernels.wide_bytes; i < out.size(); i++) {
          REQUIRE(out.data()[i] == 0x55);
        }
      }
    }
  });
}

TEST_CASE("rows of NaN pass through the row kernels") {
  for_each_kernels([](const Kernels& kernels) {
    const std::vector<float> x(100, std::nanf(""));
    std::vector<float> y(100, 1.f);
    const Buffer out(128 * 4);
    float scale = 0;
    kernels.quantise(x.data(), 100, OperandKind::int8, out.data(), &scale);
    for (size_t i = 0; i < 100; i++) CHECK(out.as<int8_t>()[i] >= -127);
    kernels.norm(x.data(), y.data(), 100, 1e-5f, OperandKind::int8, out.data(), &scale);
    kernels.norm(x.data(), y.data(), 100, 1e-5f, OperandKind::wide, out.data(), &scale);
    CHECK(std::isnan(read_wide(kernels, out.data(), 5)));
    kernels.add_norm(y.data(), x.data(), y.data(), 100, 1e-5f);
    CHECK(std::isnan(y[0]));
  });
}

TEST_CASE("a quantised row with a number that is not finite has a scale of NaN") {
  for_each_kernels([](const Kernels& kernels) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::nanf(""), -std::nanf(""), infinity, -infinity}) {
      for (const size_t at : {size_t{0}, size_t{5}, size_t{63}, size_t{99}}) {
        CAPTURE(bad);
        CAPTURE(at);
        Random random(at);
        std::vector<float> x = random.reals(100);
        const std::vector<float> weight = random.reals(100);
        x[at] = bad;
        const Buffer out(128);
        float scale = 0;
        kernels.quantise(x.data(), 100, OperandKind::int8, out.data(), &scale);
        CHECK(std::isnan(scale));
        scale = 0;
        kernels.norm(x.data(), weight.data(), 100, 1e-5f, OperandKind::int8, out.data(), &scale);
        CHECK(std::isnan(scale));
      }
    }
  });
}

TEST_CASE("a row of NaN alone has a scale of NaN") {
  for_each_kernels([](const Kernels& kernels) {
    const std::vector<float> x(100, std::nanf(""));
    const Buffer out(128);
    float scale = 0;
    kernels.quantise(x.data(), 100, OperandKind::int8, out.data(), &scale);
    CHECK(std::isnan(scale));
  });
}

TEST_CASE("a logit's weight is its exponential, whatever stands beside it") {
  for_each_kernels([](const Kernels& kernels) {
    constexpr int kMost = 300;
    Random random(9);
    std::vector<float> logits = random.reals(kMost);
    for (float& x : logits) x = (x - 1) * 30;  // -60 .. 0
    logits[5] = -std::numeric_limits<float>::infinity();
    logits[6] = -1e30f;
    logits[7] = 0;
    for (const float scale : {0.5f, 1.f, 1e30f}) {
      std::vector<float> all(kMost), few(kMost);
      kernels.exponentials(logits.data(), kMost, 0, scale, all.data());
      CHECK(all[5] == 0);
      CHECK(all[6] == 0);
      CHECK(all[7] == 1);
      for (int i = 0; i < kMost; i++) {
        const double exact = std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) * scale);
        REQUIRE(std::fabs(all[static_cast<size_t>(i)] - exact) <= 1e-5 * exact + 1e-37);
      }
      for (const int count : {1, 3, 8, 17, 299}) {
        const size_t from = static_cast<size_t>(kMost - count);
        few.assign(kMost, 7);
        const float sum = kernels.exponentials(logits.data() + from, count, 0, scale, few.data());
        double total = 0;
        for (size_t i = 0; i < static_cast<size_t>(count); i++) {
          REQUIRE(few[i] == all[from + i]);
          total += static_cast<double>(few[i]);
        }
        CHECK(few[static_cast<size_t>(count)] == 7);
        CHECK(static_cast<double>(sum) == doctest::Approx(total).epsilon(1e-6));
      }
    }
  });
}
