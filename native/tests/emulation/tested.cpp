// In the executable with the emulated levels these are what the tests of the kernels find.
#include "cpu.h"

namespace headrace {

std::vector<const Kernels*> available_kernels() { return {amx_kernels(), avx512_kernels()}; }

}  // namespace headrace
