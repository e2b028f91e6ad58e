// For processors with AVX2, fused multiply-add and half-precision loads.
#include "float_level.h"
#include "table.h"

namespace headrace {
namespace {

struct Avx2 : FloatLevel {
  static constexpr const char* kIsa = "avx2";
  static constexpr uint32_t kLayout = 5;
};
constexpr Kernels kTable = make_table<Avx2>();

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace headrace
