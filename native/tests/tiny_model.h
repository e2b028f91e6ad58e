// Small random decoders, and what they must compute, written plainly in double precision.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model.h"
#include "weights.h"

namespace headrace {

struct TinyModel {
  ModelSpec spec;
  bool tied = false;
  std::map<std::string, std::vector<float>> values;  // [n][k], bf16 values; gate and up apart
  std::vector<std::vector<float>> cos, sin;          // of each rope table

  int qkv_n() const { return (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim; }
};

struct Kinds {  // of the matrices
  WeightKind most = WeightKind::bf16, down = WeightKind::bf16;
};

TinyModel make_tiny(const ModelSpec&, bool tied, unsigned seed);
std::shared_ptr<Weights> pack_tiny(const TinyModel&, const Kernels&, const Kinds&);
std::unique_ptr<Model> load_tiny(const TinyModel&, const Kernels&, const Kinds&,
                                 const Model::Options&);

// The same with the numbers of the packed matrices, as products see them.
TinyModel as_packed(const TinyModel&, const Weights&, const Kernels&);
// Whether the rows of every matrix are whole groups, where a kind stores groups.
bool can_hold(const TinyModel&, const Kinds&);

// Logits after each of the tokens: [tokens][vocab_size].
std::vector<std::vector<double>> reference_logits(const TinyModel&, const std::vector<int>& tokens);

// The five architectures, shrunk to awkward sizes, and one with everything else.
std::map<std::string, TinyModel> tiny_models();

}  // namespace headrace
