#include "weights.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <system_error>

#include "checksum.h"
#include "cpu.h"
#include "parallel.h"
#include "stored.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Kind = Entry::Kind;

// A folder that goes with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "headrace-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const char* name = "w.bin") const { return (path / name).string(); }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), {}));
  }
};

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Stored stored(const std::vector<float>& values, int num_rows) {
  return {"F32",
          num_rows,
          {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}};
}

const std::vector<Entry> kEntries = {
    {"norm", Kind::vector, WeightKind::bf16, 1, 70},
    {"wide", Kind::matrix, WeightKind::bf16, 40, 70},
    {"narrow", Kind::matrix, WeightKind::i8, 33, 70},
    {"embedding", Kind::table, WeightKind::bf16, 100, 70},
};

std::shared_ptr<Weights> make(const std::string& path, const std::string& tag = "tag",
                              int num_threads = 2,
                              const Kernels& kernels = *available_kernels().front()) {
  auto weights = Weights::create(path, tag, kernels, kEntries, num_threads);
  for (const Entry& entry : kEntries) {
    const auto values =
        random_values(static_cast<size_t>(entry.n) * static_cast<size_t>(entry.k), 7);
    weights->put(entry.name, {stored(values, entry.n)}, false);
  }
  weights->finish();
  return weights;
}

std::shared_ptr<Weights> reopen(const std::string& path, const std::string& tag = "tag") {
  return Weights::open(path, tag, *available_kernels().front(), 2);
}

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::vector<float> column(const Weights& weights, const std::string& name, int index) {
  const Matrix matrix = weights.matrix(name);
  std::vector<float> out(static_cast<size_t>(matrix.k));
  weights.kernels().read_column(matrix, index, out.data());
  return out;
}

// Sets the bytes of a file's checksum so that only its contents can give it away.
void reseal(std::vector<char>& bytes) {
  if (bytes.size() < 64) return;
  std::memset(&bytes[56], 0, 8);
  const std::span<const uint8_t> all(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const uint64_t parts[] = {checksum_piece(all.first(64)), checksum(all.subspan(64), 1)};
  const uint64_t sum = checksum_combine(parts, bytes.size());
  std::memcpy(&bytes[56], &sum, sizeof sum);
}

TEST_CASE("a file that was finished opens with the same bytes") {
  const Folder folder;
  const auto made = make(folder.file());
  const auto opened = reopen(folder.file());
  REQUIRE(opened);
  CHECK(folder.num_files() == 1);
  CHECK(opened->num_bytes() == made->num_bytes());
  CHECK(opened->entries().size() == kEntries.size());
  for (const char* name : {"wide", "narrow"}) {
    const Matrix a = made->matrix(name), b = opened->matrix(name);
    CHECK(b.n == a.n);
    CHECK(b.k == a.k);
    CHECK(b.kind == a.kind);
    CHECK(reinterpret_cast<uintptr_t>(b.panels) % 4096 == 0);
    CHECK(std::memcmp(a.panels, b.panels, static_cast<size_t>(a.num_panels()) * a.panel_bytes) ==
          0);
  }
  const auto a = made->table("embedding"), b = opened->table("embedding");
  CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

TEST_CASE("every level reads back what was packed, whatever the number of threads") {
  for (const Kernels* kernels : available_kernels()) {
    CAPTURE(std::string(kernels->isa));
    const auto one = make("", "tag", 1, *kernels), many = make("", "tag", 3, *kernels);
    const auto values = random_values(size_t{40} * 70, 7);
    for (int c = 0; c < 40; c++) {
      const auto got = column(*many, "wide", c);
      CHECK(got == column(*one, "wide", c));
      for (size_t i = 0; i < 70; i++) {
        CHECK(got[i] == bf16_to_float(float_to_bf16(values[static_cast<size_t>(c) * 70 + i])));
      }
    }
    const auto narrow = random_values(size_t{33} * 70, 7);
    for (int c = 0; c < 33; c++) {
      float absmax = 0;
      for (size_t i = 0; i < 70; i++) {
        absmax = std::max(absmax, std::fabs(narrow[static_cast<size_t>(c) * 70 + i]));
      }
      const auto got = column(*many, "narrow", c);
      for (size_t i = 0; i < 70; i++) {
        CHECK(std::fabs(got[i] - narrow[static_cast<size_t>(c) * 70 + i]) <= absmax / 127 * 0.501f);
      }
    }
  }
}

TEST_CASE("interleaved parts take sixteen columns in turn, with zeros where a part has ended") {
  const Kernels& kernels = *available_kernels().front();
  const Entry entry{"gate_up", Kind::matrix, WeightKind::bf16, 40, 64};
  std::vector<float> gate(20 * 64), up(20 * 64);
  for (size_t i = 0; i < gate.size(); i++) {
    gate[i] = static_cast<float>(1 + i / 64);
    up[i] = static_cast<float>(101 + i / 64);
  }
  auto weights = Weights::create("", "", kernels, {entry}, 2);
  weights->put("gate_up", {stored(gate, 20), stored(up, 20)}, true);
  weights->finish();
  CHECK(weights->matrix("gate_up").num_panels() == 2);
  auto first = [&](int c) { return column(*weights, "gate_up", c)[0]; };
  CHECK(first(0) == 1);
  CHECK(first(15) == 16);
  CHECK(first(16) == 101);
  CHECK(first(31) == 116);
  CHECK(first(35) == 20);
  CHECK(first(36) == 0);
  CHECK(first(51) == 120);
  CHECK(first(52) == 0);
}

TEST_CASE("another tag, another layout and no file are null") {
  const Folder folder;
  make(folder.file());
  CHECK(reopen(folder.file(), "other") == nullptr);
  CHECK(reopen(folder.file("absent.bin")) == nullptr);
  CHECK(reopen(folder.path.string()) == nullptr);
  Kernels other = *available_kernels().front();
  other.layout++;
  CHECK(Weights::open(folder.file(), "tag", other, 1) == nullptr);
  REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  CHECK(reopen(folder.file("pipe")) == nullptr);
}

TEST_CASE("a file cut short anywhere is null") {
  const Folder folder;
  make(folder.file());
  const std::vector<char> whole = read(folder.file());
  std::mt19937 random(1);
  for (int i = 0; i < 200; i++) {
    const size_t size = i < 100 ? static_cast<size_t>(i) * 3 : random() % whole.size();
    write(folder.file("cut.bin"), {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    CHECK(reopen(folder.file("cut.bin")) == nullptr);
  }
}

TEST_CASE("any flipped bit makes a file null") {
  const Folder folder;
  make(folder.file());
  const std::vector<char> whole = read(folder.file());
  std::mt19937 random(2);
  for (int i = 0; i < 300; i++) {
    std::vector<char> damaged = whole;
    const size_t at = i < 150 ? random() % 300 : random() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << random() % 8);
    write(folder.file("bad.bin"), damaged);
    CHECK(reopen(folder.file("bad.bin")) == nullptr);
  }
}

TEST_CASE("a hostile head under a right checksum never leads outside the file") {
  const Folder folder;
  make(folder.file());
  const std::vector<char> whole = read(folder.file());
  std::mt19937 random(3);
  const std::vector<char> extremes = {0, 1, -1, 127, -128};
  for (int i = 0; i < 2000; i++) {
    std::vector<char> hostile = whole;
    for (unsigned change = 0; change < 1 + random() % 4; change++) {
      hostile[random() % 300] =
          random() % 2 ? extremes[random() % extremes.size()] : static_cast<char>(random());
    }
    if (random() % 4 == 0) hostile.resize(random() % hostile.size());
    reseal(hostile);
    write(folder.file("bad.bin"), hostile);
    const auto weights = reopen(folder.file("bad.bin"));
    if (!weights) continue;
    // Names and kinds may have changed; what they point at is still there to be read.
    for (const Entry& entry : weights->entries()) {
      if (entry.kind == Kind::matrix) {
        for (int c = 0; c < entry.n; c++) column(*weights, entry.name, c);
      } else if (entry.kind == Kind::vector) {
        const auto values = weights->vector(entry.name);
        CHECK(values.size() == static_cast<size_t>(entry.k));
        volatile float last = values.back();
        (void)last;
      } else {
        volatile uint16_t last = weights->table(entry.name).back();
        (void)last;
      }
    }
  }
}

TEST_CASE("what is never finished leaves no file behind") {
  const Folder folder;
  {
    const auto weights =
        Weights::create(folder.file(), "tag", *available_kernels().front(), kEntries, 1);
    CHECK(folder.num_files() == 1);
    CHECK_THROWS_WITH_AS(weights->finish(), "weights: 'norm' was not put", std::invalid_argument);
    CHECK_THROWS_AS(weights->matrix("wide"), std::invalid_argument);
  }
  CHECK(folder.num_files() == 0);
}

TEST_CASE("a folder that is not there and a disk without room are errors of the system") {
  const Kernels& kernels = *available_kernels().front();
  CHECK_THROWS_AS(Weights::create("/nowhere/w.bin", "", kernels, kEntries, 1), std::system_error);
  const Folder folder;
  const std::vector<Entry> huge(64, {"", Kind::matrix, WeightKind::bf16, 1 << 24, 1 << 14});
  std::vector<Entry> named = huge;
  for (size_t i = 0; i < named.size(); i++) named[i].name = std::to_string(i);
  CHECK_THROWS_AS(Weights::create(folder.file(), "", kernels, named, 1), std::system_error);
  CHECK(folder.num_files() == 0);
}

TEST_CASE("numbers that are not finite are refused by the entry's name, and can be put again") {
  const Kernels& kernels = *available_kernels().front();
  for (const Entry& entry : kEntries) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      auto weights = Weights::create("", "", kernels, {entry}, 2);
      auto values = random_values(static_cast<size_t>(entry.n) * static_cast<size_t>(entry.k), 5);
      values.back() = bad;
      CHECK_THROWS_AS(weights->put(entry.name, {stored(values, entry.n)}, false),
                      std::invalid_argument);
      values.back() = 0;
      weights->put(entry.name, {stored(values, entry.n)}, false);
      weights->finish();
    }
  }
}

TEST_CASE("parts that do not fit an entry are refused") {
  const Kernels& kernels = *available_kernels().front();
  auto weights = Weights::create("", "", kernels, kEntries, 1);
  const auto values = random_values(size_t{40} * 70, 5);
  const Stored right = stored(values, 40);
  auto refuses = [&](const char* name, const std::vector<Stored>& parts, bool interleaved = false) {
    CHECK_THROWS_AS(weights->put(name, parts, interleaved), std::invalid_argument);
  };
  refuses("wide", {});
  refuses("wide", {right, right});
  refuses("wide", {right}, true);
  refuses("wide", {stored(values, 39)});
  refuses("wide", {{"F32", 40, right.bytes.first(right.bytes.size() - 1)}});
  refuses("wide", {{"Q8_0", 40, right.bytes}});
  refuses("wide", {{"Q9", 40, right.bytes}});
  refuses("wide", {{"F32", -40, right.bytes}});
  refuses("absent", {right});
  refuses("norm", {right});
  weights->put("wide", {right}, false);
  refuses("wide", {right});
}

TEST_CASE("columns of zeros stay zero in int8, and the smallest numbers do not overflow") {
  const Kernels& kernels = *available_kernels().front();
  const Entry entry{"m", Kind::matrix, WeightKind::i8, 2, 64};
  auto weights = Weights::create("", "", kernels, {entry}, 1);
  std::vector<float> values(128);
  values[64] = 190 * std::numeric_limits<float>::denorm_min();
  weights->put("m", {stored(values, 2)}, false);
  weights->finish();
  for (const float value : column(*weights, "m", 0)) CHECK(value == 0);
  for (const float value : column(*weights, "m", 1)) CHECK(std::isfinite(value));
}

TEST_CASE("entries that cannot be are refused") {
  const Kernels& kernels = *available_kernels().front();
  auto refuses = [&](std::vector<Entry> entries) {
    CHECK_THROWS_AS(Weights::create("", "", kernels, std::move(entries), 1), std::invalid_argument);
  };
  const Entry good = kEntries[1];
  refuses({});
  refuses({good, good});
  refuses({{"", Kind::matrix, WeightKind::bf16, 1, 1}});
  refuses({{"m", Kind::matrix, WeightKind::bf16, 0, 1}});
  refuses({{"m", Kind::matrix, WeightKind::bf16, 1, -1}});
  refuses({{"m", Kind::matrix, WeightKind::bf16, (1 << 24) + 1, 1}});
  refuses({{"v", Kind::vector, WeightKind::bf16, 2, 1}});
  refuses({{"m", Kind::matrix, WeightKind::i8a8, 1, (1 << 17) + 1}});
  Weights::create("", "", kernels, {{"m", Kind::matrix, WeightKind::i8a8, 1, 1 << 17}}, 1);
  Weights::create("", "", kernels, {{"m", Kind::matrix, WeightKind::i8, 1, (1 << 17) + 1}}, 1);
  CHECK_THROWS_AS(Weights::create("", "", kernels, {good}, 0), std::invalid_argument);
}

TEST_CASE("the checksum does not depend on the threads, and tells any piece from another") {
  std::vector<uint8_t> bytes((size_t{3} << 20) + 5);
  std::mt19937 random(4);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  const uint64_t sum = checksum(bytes, 1);
  CHECK(checksum(bytes, 3) == sum);
  std::swap_ranges(bytes.begin(), bytes.begin() + (1 << 20), bytes.begin() + (1 << 20));
  CHECK(checksum(bytes, 3) != sum);
  CHECK(checksum({}, 1) != checksum(std::vector<uint8_t>(1), 1));
}

TEST_CASE("half floats of every bit pattern have their value") {
  for (uint32_t bits = 0; bits < 0x7c00; bits++) {
    const int exponent = static_cast<int>(bits >> 10);
    const float fraction = static_cast<float>(bits & 0x3ff) / 1024;
    const float value =
        exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
    REQUIRE(half_to_float(static_cast<uint16_t>(bits)) == value);
    REQUIRE(half_to_float(static_cast<uint16_t>(bits | 0x8000)) == -value);
  }
  CHECK(std::isinf(half_to_float(0x7c00)));
  CHECK(std::isnan(half_to_float(0x7e00)));
}

TEST_CASE("units are worked on once each by any number of threads") {
  std::vector<std::atomic<int>> seen(1000);
  for_each_unit(8, seen.size(), [&](int thread, size_t i) {
    CHECK(thread < 8);
    seen[i]++;
  });
  CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& count) { return count == 1; }));
  for_each_unit(8, 0, [](int, size_t) { FAIL("no unit was to come"); });
}

}  // namespace
}  // namespace headrace
