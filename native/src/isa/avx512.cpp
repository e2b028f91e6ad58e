#include "level512.h"
#include "machine_avx512.h"

namespace headrace {
namespace {

struct Avx512Level : Level512<Avx512Machine> {
  static constexpr const char* kIsa = "avx512";
  static constexpr uint32_t kLayout = 0x51200001;
};

constexpr Kernels kTable = make_table<Avx512Level>();

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

}  // namespace headrace
