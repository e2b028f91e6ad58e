// The amx kernels on any x86-64-v3 machine.
// clang-format off: the order matters
#include "../../src/isa/amx.cpp"

#include "emulation.h"
