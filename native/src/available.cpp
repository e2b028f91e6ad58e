// Apart from cpu.cpp: an executable with emulated levels says itself what it has.
#include "cpu.h"

namespace headrace {
namespace {

bool may_use_tiles() {
  static const bool granted = request_amx();
  return granted;
}

}  // namespace

std::vector<const Kernels*> available_kernels() {
  return usable_kernels(cpu_levels(read_cpu_registers()), may_use_tiles);
}

}  // namespace headrace
