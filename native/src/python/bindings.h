// What the module is made of, one file for each class.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "kernels.h"
#include "weights.h"

namespace headrace {

// Weights as Python holds them.
struct WeightsObject {
  std::shared_ptr<Weights> weights;
};

// HEADRACE_ISA or the best; `isa` where it is given. std::invalid_argument naming which is wrong.
const Kernels& kernels_for(const std::optional<std::string>& isa);

void bind_weights(nanobind::module_& module);
void bind_model(nanobind::module_& module);

}  // namespace headrace
