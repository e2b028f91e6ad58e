// The Python extension headrace_native._native: checks what comes in, and lets go of the
// interpreter's lock while it works.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <system_error>

#include "bindings.h"
#include "cpu.h"

namespace nb = nanobind;

namespace headrace {
namespace {

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->isa);
  return names;
}

std::string level() { return kernels_for(std::nullopt).isa; }

// OSError(errno, message), so that Python chooses PermissionError and its like.
void translate_system_error(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& error) {
    const nb::tuple arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

}  // namespace

const Kernels& kernels_for(const std::optional<std::string>& isa) {
  if (isa) return chosen_kernels(isa->c_str(), "isa");
  return chosen_kernels(std::getenv("HEADRACE_ISA"));
}

}  // namespace headrace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // objects that live until the interpreter ends are no mistake
  nb::register_exception_translator(headrace::translate_system_error);
  module.def("levels", &headrace::levels);
  module.def("level", &headrace::level);
  headrace::bind_weights(module);
  headrace::bind_model(module);
}
