#include "cpu.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace headrace {
namespace {

// A processor that has everything under a system that saves everything.
CpuRegisters everything() {
  CpuRegisters r;
  r.basic_ecx = r.ebx = r.ecx = r.edx = r.eax = r.extended_ecx = ~uint32_t{0};
  r.xcr0 = ~uint64_t{0};
  return r;
}

CpuRegisters without(uint32_t CpuRegisters::*field, int bit) {
  CpuRegisters r = everything();
  r.*field &= ~(uint32_t{1} << bit);
  return r;
}

TEST_CASE("a processor that has everything runs every level") {
  const CpuLevels levels = cpu_levels(everything());
  CHECK(levels.avx2);
  CHECK(levels.avx512);
  CHECK(levels.amx);
}

TEST_CASE("a machine of which nothing is known runs none of the levels") {
  const CpuLevels levels = cpu_levels(CpuRegisters{});
  CHECK_FALSE(levels.avx2);
  CHECK_FALSE(levels.avx512);
  CHECK_FALSE(levels.amx);
}

TEST_CASE("each feature that avx2 code may use is required by it and by all above") {
  for (int bit : {12, 22, 23, 27, 28, 29}) {
    const CpuLevels levels = cpu_levels(without(&CpuRegisters::basic_ecx, bit));
    CHECK_FALSE((levels.avx2 || levels.avx512 || levels.amx));
  }
  for (int bit : {3, 5, 8}) CHECK_FALSE(cpu_levels(without(&CpuRegisters::ebx, bit)).avx2);
  CHECK_FALSE(cpu_levels(without(&CpuRegisters::extended_ecx, 5)).avx2);
}

TEST_CASE("without one of the AVX-512 features it is avx2") {
  const auto is_avx2 = [](const CpuRegisters& r) {
    const CpuLevels levels = cpu_levels(r);
    return levels.avx2 && !levels.avx512 && !levels.amx;
  };
  for (int bit : {16, 17, 28, 30, 31}) CHECK(is_avx2(without(&CpuRegisters::ebx, bit)));
  CHECK(is_avx2(without(&CpuRegisters::ecx, 11)));
  CHECK(is_avx2(without(&CpuRegisters::eax, 5)));
}

TEST_CASE("without the tiles or FP16 it is avx512") {
  for (int bit : {22, 23, 24, 25}) {
    const CpuLevels levels = cpu_levels(without(&CpuRegisters::edx, bit));
    CHECK(levels.avx512);
    CHECK_FALSE(levels.amx);
  }
}

TEST_CASE("registers that the system does not save are not used") {
  CpuRegisters r = everything();
  r.xcr0 = 0xe7;  // no tiles
  CHECK(cpu_levels(r).avx512);
  CHECK_FALSE(cpu_levels(r).amx);
  r.xcr0 = 0x7;  // no zmm either
  CHECK(cpu_levels(r).avx2);
  CHECK_FALSE(cpu_levels(r).avx512);
  r.xcr0 = 0x3;
  CHECK_FALSE(cpu_levels(r).avx2);
}

std::vector<std::string> names_of(const std::vector<const Kernels*>& kernels) {
  std::vector<std::string> names;
  for (const Kernels* k : kernels) names.emplace_back(k->isa);
  return names;
}

TEST_CASE("where the system refuses the tiles the level below is the best") {
  const CpuLevels levels = cpu_levels(everything());
  std::vector<std::string> granted = names_of(usable_kernels(levels, [] { return true; }));
  const std::vector<std::string> refused = names_of(usable_kernels(levels, [] { return false; }));
  if (amx_kernels()) {
    REQUIRE(granted.front() == "amx");
    granted.erase(granted.begin());
  }
  CHECK(refused == granted);
  if (avx512_kernels()) CHECK(refused.front() == "avx512");
}

TEST_CASE("the system is asked for the tiles only where the machine and the build have them") {
  static int asked;
  asked = 0;
  const auto ask = [] {
    asked++;
    return false;
  };
  CpuLevels levels = cpu_levels(everything());
  usable_kernels(levels, ask);
  CHECK(asked == (amx_kernels() ? 1 : 0));
  levels.amx = false;
  CHECK(names_of(usable_kernels(levels, ask)).back() == "scalar");
  CHECK(asked == (amx_kernels() ? 1 : 0));
}

TEST_CASE("asking for the tiles twice gives the same answer") {
  CHECK(request_amx() == request_amx());
}

TEST_CASE("the portable kernels come last and the chosen ones are the first") {
  const auto kernels = available_kernels();
  REQUIRE_FALSE(kernels.empty());
  CHECK(std::string(kernels.back()->isa) == "scalar");
  CHECK(&chosen_kernels(nullptr) == kernels.front());
  CHECK(&chosen_kernels("") == kernels.front());
}

TEST_CASE("every available level can be forced by its name") {
  for (const Kernels* k : available_kernels()) CHECK(&chosen_kernels(k->isa) == k);
}

TEST_CASE("an unknown level is an error that names the variable and what there is") {
  try {
    chosen_kernels("avx1024");
    FAIL("no error");
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    CHECK(message.find("HEADRACE_ISA") != std::string::npos);
    CHECK(message.find("'avx1024'") != std::string::npos);
    for (const Kernels* k : available_kernels()) CHECK(message.find(k->isa) != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(chosen_kernels("avx1024", "isa"), doctest::Contains("isa is 'avx1024'"),
                       std::invalid_argument);
}

}  // namespace
}  // namespace headrace
