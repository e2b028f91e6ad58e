// Stands in for the AVX-512 and AMX intrinsics that src/isa uses, so that those sources compile for
// any x86-64-v3 machine and give what the hardware gives, bit for bit, as Intel's manual documents
// it: products of bf16 are fused multiply-adds that round to nearest even, read denormals as zero
// and flush them to zero. Include it before anything else.
#pragma once

#include <immintrin.h>

#include "tiles.h"
#include "vectors.h"

#define __AVX512F__ 1
#define __AVX512BF16__ 1
