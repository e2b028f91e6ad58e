// clang-format off: the order matters
#include "emulation.h"
// clang-format on

#include <doctest/doctest.h>

#include <vector>

#include "../kernels_fixture.h"

using namespace headrace;
using namespace headrace::testing;

namespace {

struct alignas(64) Tile {
  uint16_t numbers[16][32] = {};
  void set(int row, int column, float x) {
    numbers[row][column] = static_cast<uint16_t>(emulation::to_bf16(emulation::F32{} + x)[0]);
  }
};

void configure() {
  alignas(64) uint8_t c[64] = {1};
  for (int t = 0; t < 3; t++) c[16 + 2 * t] = 64, c[48 + t] = 16;
  _tile_loadconfig(c);
}

float first_of_product(const Tile& a, const Tile& b) {
  float out[16][16];
  configure();
  _tile_zero(0);
  _tile_loadd(1, &a, 64);
  _tile_loadd(2, &b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, out, 64);
  _tile_release();
  return out[0][0];
}

__m512i pairs(float even, float odd) {
  const emulation::Halves e = emulation::to_bf16(emulation::F32{} + even);
  const emulation::Halves o = emulation::to_bf16(emulation::F32{} + odd);
  return _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(o[0]) << 16 | e[0]));
}

}  // namespace

TEST_CASE("tiles sum even and odd numbers apart before they meet") {
  Tile a, b;
  const float products[] = {16777216.f, 1.f, 1.f, 1.f};  // in one sum the ones would be lost
  for (int k = 0; k < 4; k++) {
    a.set(0, k, products[k]);
    b.set(k / 2, k % 2, 1.f);
  }
  CHECK(first_of_product(a, b) == 16777218.f);
}

TEST_CASE("tiles read denormals as zero and make them zero") {
  Tile a, b;
  a.numbers[0][0] = 1;  // the smallest denormal
  b.set(0, 0, 0x1p100f);
  CHECK(first_of_product(a, b) == 0.f);
  a.set(0, 0, 0x1p-100f);
  b.set(0, 0, 0x1p-40f);
  CHECK(first_of_product(a, b) == 0.f);
  b.set(0, 0, 0x1p-26f);
  CHECK(first_of_product(a, b) == 0x1p-126f);
}

TEST_CASE("vdpbf16ps adds the odd product before the even one") {
  const __m512 sum = (__m512)(emulation::F32{} + 16777216.f);
  const __m512 out = _mm512_dpbf16_ps(sum, pairs(-4096.f, 1.f), pairs(4096.f, 1.f));
  CHECK(((emulation::F32)out)[7] == 0.f);  // the even one first would leave 1
}

TEST_CASE("rounding to bf16 goes to even, keeps NaN and drops denormals") {
  const auto round = [](uint32_t bits) {
    return emulation::to_bf16((emulation::F32)(emulation::U32{} + bits))[3];
  };
  CHECK(round(0x3f808000u) == 0x3f80u);
  CHECK(round(0x3f818000u) == 0x3f82u);
  CHECK(round(0x3f808001u) == 0x3f81u);
  CHECK(round(0x7f800001u) == 0x7fc0u);
  CHECK(round(0x807fffffu) == 0x8000u);
}

TEST_CASE("vpdpbusd takes unsigned by signed numbers") {
  const __m512i a = _mm512_set1_epi8(-1), b = _mm512_set1_epi8(-128);
  CHECK(_mm512_reduce_add_epi32(_mm512_dpbusd_epi32(_mm512_set1_epi32(5), a, b)) ==
        16 * (5 - 4 * 255 * 128));
}

// Panels beyond the first cache are multiplied piece by piece when there are many rows.
TEST_CASE("a long int8 product has the same bits in pieces of the panel and whole") {
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(std::string(kernels->isa));
    const int rows = 300, n = 32, k = 1700;
    const Packed b(*kernels, WeightKind::i8a8, n, k, 11);
    const Operands a(*kernels, WeightKind::i8a8, rows, k, 12);
    const Buffer scratch(kernels->scratch_bytes(k, 64));
    std::vector<float> whole(rows * kPanel), single(whole.size());
    const auto run = [&](int begin, int end, std::vector<float>& out) {
      Epilogue e;
      e.out = out.data();
      e.out_stride = kPanel;
      kernels->product(b.matrix, 0, a.operand(), begin, end, e, nullptr, scratch.data());
    };
    kernels->begin();
    run(0, rows, whole);
    for (int r = 0; r < rows; r++) run(r, r + 1, single);
    kernels->end();
    CHECK(whole == single);
  }
}

// Stored with a bias, such weights make sums that pass the end of an int32 before it is taken off.
TEST_CASE("the longest int8 product of the largest numbers is exact") {
  const int k = 1 << 17;
  const size_t numbers = static_cast<size_t>(k);
  const std::vector<int8_t> quants(kPanel * numbers, 127);
  const std::vector<float> ones(kPanel, 1.f);
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(std::string(kernels->isa));
    const Buffer panel(kernels->panel_bytes(WeightKind::i8a8, k));
    kernels->pack(WeightKind::i8a8, {k, nullptr, quants.data(), ones.data(), nullptr},
                  panel.data());
    const Matrix matrix{WeightKind::i8a8, kPanel, k, panel.data(), panel.size()};
    const Buffer rows(numbers * 16), scratch(kernels->scratch_bytes(k, 64));
    memset(rows.data(), 127, numbers);
    memset(rows.data() + numbers, -127, numbers);
    std::vector<float> out(2 * kPanel);
    Epilogue e;
    e.out = out.data();
    e.out_stride = kPanel;
    kernels->begin();
    kernels->product(matrix, 0, {rows.data(), numbers, ones.data()}, 0, 2, e, nullptr,
                     scratch.data());
    kernels->end();
    const float exact = 127.f * 127.f * static_cast<float>(k);
    for (size_t c = 0; c < kPanel; c++) {
      REQUIRE(out[c] == exact);
      REQUIRE(out[kPanel + c] == -exact);
    }
  }
}
