// Levels that this build leaves out answer null; scalar is in every build.
#include "kernels.h"

namespace headrace {

#ifndef HEADRACE_WITH_AMX
const Kernels* amx_kernels() { return nullptr; }
#endif
#ifndef HEADRACE_WITH_AVX512
const Kernels* avx512_kernels() { return nullptr; }
#endif
#ifndef HEADRACE_WITH_AVX2
const Kernels* avx2_kernels() { return nullptr; }
#endif

}  // namespace headrace
