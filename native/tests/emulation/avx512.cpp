// The avx512 kernels on any x86-64-v3 machine.
// clang-format off: the order matters
#include "../../src/isa/avx512.cpp"

#include "emulation.h"
