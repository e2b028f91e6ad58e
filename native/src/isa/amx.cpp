#include "level512.h"
#include "machine_amx.h"

namespace headrace {
namespace {

struct AmxLevel : Level512<AmxMachine> {
  static constexpr const char* kIsa = "amx";
  static constexpr uint32_t kLayout = 0xa3000001;
};

constexpr Kernels kTable = make_table<AmxLevel>();

}  // namespace

const Kernels* amx_kernels() { return &kTable; }

}  // namespace headrace
