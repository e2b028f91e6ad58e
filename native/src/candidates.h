// The tokens of one row that limits have left, with their weights. Knows no requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels.h"

namespace headrace {

// A logit's weight is exp((logit - most) * scale): 1 for the likeliest token.
struct Scaling {
  float most, scale;
  double temperature;

  // A logit that every token of at least this weight reaches, whatever the roundings.
  float floor_of(double weight) const;
};

// A place within numbers that stand for shares of a whole, and how far into it (0 to 1).
struct Place {
  size_t index;
  double rest;
};

// Where `uniform`, in [0, 1], of the sum of the weights falls; one of them at least is positive.
Place place_in(std::span<const float> weights, double uniform);

class Candidates {
 public:
  Candidates(const Kernels&, int vocab_size);

  // The tokens whose logits reach the floor, by rising id; maxima: of each kPanel of them.
  void gather(const float* logits, std::span<const float> maxima, float floor);
  // Weighs them and leaves those out that weigh less than min_weight, or nothing.
  void weigh(const Scaling&, double min_weight);
  // Of equal ones the lowest ids stay.
  void keep_top_k(size_t k);
  void keep_nucleus(double mass);  // the fewest likeliest that weigh as much together

  double mass() const;
  int32_t draw(double uniform) const;

 private:
  struct Candidate {
    float logit, weight;
    int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
  static Candidate last_of_nucleus(Candidate* first, Candidate* last, double mass);

  Candidate at(size_t i) const { return {logits_[i], weights_[i], ids_[i]}; }
  Candidate* unranked();  // a copy that may be put in another order
  template <class Keep>
  void keep(const Keep& stays);

  const Kernels& kernels_;
  int vocab_size_;
  size_t size_ = 0;
  std::unique_ptr<float[]> logits_, weights_;
  std::unique_ptr<int32_t[]> ids_;
  std::unique_ptr<Candidate[]> others_;
};

}  // namespace headrace
