#include "cpu.h"

#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headrace {
namespace {

constexpr bool has_all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }
constexpr uint32_t bit(int index) { return uint32_t{1} << index; }

// Each level lists what its library is compiled for, so that no instruction which the compiler
// picks by itself is missing: x86-64-v3, then x86-64-v4 with VNNI and BF16, then FP16 and the
// tiles.
constexpr uint32_t kBasicEcx = bit(12) | bit(22) | bit(23) | bit(27) | bit(28) | bit(29);
//                             fma       movbe     popcnt    osxsave   avx       f16c
constexpr uint32_t kAvx2Ebx = bit(3) | bit(5) | bit(8);  // bmi1, avx2, bmi2
constexpr uint32_t kLzcnt = bit(5);
constexpr uint32_t kAvx512Ebx =
    bit(16) | bit(17) | bit(28) | bit(30) | bit(31);  // f, dq, cd, bw, vl
constexpr uint32_t kVnni = bit(11);
constexpr uint32_t kBf16 = bit(5);
constexpr uint32_t kAmxEdx = bit(22) | bit(23) | bit(24) | bit(25);  // bf16, fp16, tile, int8

constexpr uint64_t kYmmState = 0x6;       // xmm, ymm
constexpr uint64_t kZmmState = 0xe6;      // and masks, zmm 0-15, zmm 16-31
constexpr uint64_t kTileState = 0x60000;  // tile configuration, tile data

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}
#endif

std::string names_of(const std::vector<const Kernels*>& kernels) {
  std::string names;
  for (const Kernels* k : kernels) names += (names.empty() ? "" : ", ") + std::string(k->isa);
  return names;
}

}  // namespace

CpuRegisters read_cpu_registers() {
  CpuRegisters r;
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) r.basic_ecx = c;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) r.extended_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    r.ebx = b, r.ecx = c, r.edx = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) r.eax = a;
  }
  if (has_all(r.basic_ecx, bit(27))) r.xcr0 = read_xcr0();
#endif
  return r;
}

CpuLevels cpu_levels(const CpuRegisters& r) {
  CpuLevels levels;
  levels.avx2 = has_all(r.basic_ecx, kBasicEcx) && has_all(r.ebx, kAvx2Ebx) &&
                has_all(r.extended_ecx, kLzcnt) && has_all(r.xcr0, kYmmState);
  levels.avx512 = levels.avx2 && has_all(r.ebx, kAvx512Ebx) && has_all(r.ecx, kVnni) &&
                  has_all(r.eax, kBf16) && has_all(r.xcr0, kZmmState);
  levels.amx = levels.avx512 && has_all(r.edx, kAmxEdx) && has_all(r.xcr0, kTileState);
  return levels;
}

bool request_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::vector<const Kernels*> usable_kernels(const CpuLevels& levels, bool (*may_use_tiles)()) {
  std::vector<const Kernels*> kernels;
  const auto add = [&kernels](bool usable, const Kernels* k) {
    if (usable && k) kernels.push_back(k);
  };
  add(levels.amx && amx_kernels() && may_use_tiles(), amx_kernels());
  add(levels.avx512, avx512_kernels());
  add(levels.avx2, avx2_kernels());
  kernels.push_back(scalar_kernels());
  return kernels;
}

const Kernels& chosen_kernels(const char* forced, const char* source) {
  const std::vector<const Kernels*> kernels = available_kernels();
  if (!forced || !*forced) return *kernels.front();
  for (const Kernels* k : kernels)
    if (forced == std::string(k->isa)) return *k;
  throw std::invalid_argument(std::string(source) + " is '" + forced +
                              "', which this process cannot run; there is " + names_of(kernels));
}

}  // namespace headrace
