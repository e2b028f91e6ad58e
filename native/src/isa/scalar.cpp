// For every processor: what the compiler makes of short vectors without any extension.
#include "float_level.h"
#include "table.h"

namespace headrace {
namespace {

struct Scalar : FloatLevel {
  static constexpr const char* kIsa = "scalar";
  static constexpr uint32_t kLayout = 6;
};
constexpr Kernels kTable = make_table<Scalar>();

}  // namespace

const Kernels* scalar_kernels() { return &kTable; }

}  // namespace headrace
