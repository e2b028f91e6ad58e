// Which kernels this process may run: what the processor has, the system saves and the build holds.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace headrace {

// The registers that tell what an x86 processor has; all zero on any other machine.
struct CpuRegisters {
  uint32_t basic_ecx = 0;              // cpuid 1
  uint32_t ebx = 0, ecx = 0, edx = 0;  // cpuid 7.0
  uint32_t eax = 0;                    // cpuid 7.1
  uint32_t extended_ecx = 0;           // cpuid 80000001h
  uint64_t xcr0 = 0;                   // register state that the system saves
};

struct CpuLevels {
  bool avx2 = false, avx512 = false, amx = false;
};

CpuRegisters read_cpu_registers();
CpuLevels cpu_levels(const CpuRegisters&);

// Asks the system, which gives the large tile registers only to processes that asked. False where
// it refuses or does not know the question: old kernels, some sandboxes.
bool request_amx();

// What the build holds of these levels, best first, never empty: the portable kernels run
// everywhere. Where the tiles may not be used, which is asked only when all else is there, the
// level below is the best.
std::vector<const Kernels*> usable_kernels(const CpuLevels&, bool (*may_use_tiles)());

// The same of this process.
std::vector<const Kernels*> available_kernels();

// The best, or the one that `forced` names; null or empty for none. Throws std::invalid_argument
// naming `source` when this process cannot run it.
const Kernels& chosen_kernels(const char* forced, const char* source = "HEADRACE_ISA");

}  // namespace headrace
