// The amx kernels on any x86-64-v3 machine. The order matters.
// clang-format off
#include "emulation.h"

#include "../../src/isa/amx.cpp"
