#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

// Never touched, room costs nothing: it is not written to here.
template <class T>
std::unique_ptr<T[]> room(size_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

}  // namespace

float Scaling::floor_of(double weight) const {
  constexpr double kNothing = -88;  // exp of less is 0 in the kernels
  constexpr double kMargin = 1e-4;  // of an exponent, for its rounding and that of the exponential
  const double exponent = weight > 0 ? std::max(std::log(weight), kNothing) : kNothing;
  const double floor = static_cast<double>(most) + (exponent - kMargin) * temperature;
  const auto rounded = static_cast<float>(
      std::max(floor, static_cast<double>(std::numeric_limits<float>::lowest())));
  return std::nextafter(rounded, -std::numeric_limits<float>::infinity());
}

Place place_in(std::span<const float> weights, double uniform) {
  double total = 0;
  for (const float weight : weights) total += static_cast<double>(weight);
  const double point = std::min(uniform * total, std::nextafter(total, 0.0));
  size_t last = 0;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); i++) {
    const auto weight = static_cast<double>(weights[i]);
    if (sum + weight > point) return {i, std::clamp((point - sum) / weight, 0.0, 1.0)};
    sum += weight;
    if (weight > 0) last = i;
  }
  return {last, 1.0};
}

Candidates::Candidates(const Kernels& kernels, int vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      logits_(room<float>(static_cast<size_t>(vocab_size) + 1)),
      weights_(room<float>(static_cast<size_t>(vocab_size))),
      ids_(room<int32_t>(static_cast<size_t>(vocab_size) + 1)),
      others_(room<Candidate>(static_cast<size_t>(vocab_size))) {}

void Candidates::gather(const float* logits, std::span<const float> maxima, float floor) {
  size_t size = 0;
  for (size_t panel = 0; panel < maxima.size(); panel++) {
    if (maxima[panel] < floor) continue;
    const int first = static_cast<int>(panel) * kPanel, end = std::min(first + kPanel, vocab_size_);
    for (int id = first; id < end; id++) {
      logits_[size] = logits[id];
      ids_[size] = id;
      size += logits[id] >= floor;
    }
  }
  size_ = size;
}

void Candidates::weigh(const Scaling& scaling, double min_weight) {
  kernels_.exponentials(logits_.get(), static_cast<int>(size_), scaling.most, scaling.scale,
                        weights_.get());
  keep([=](const Candidate& c) {
    return c.weight > 0 && static_cast<double>(c.weight) >= min_weight;
  });
}

double Candidates::mass() const {
  double sum = 0;
  for (size_t i = 0; i < size_; i++) sum += static_cast<double>(weights_[i]);
  return sum;
}

void Candidates::keep_top_k(size_t k) {
  if (k >= size_) return;
  Candidate* others = unranked();
  std::nth_element(others, others + (k - 1), others + size_, better);
  keep([edge = others[k - 1]](const Candidate& c) { return !better(edge, c); });
}

void Candidates::keep_nucleus(double mass) {
  Candidate* others = unranked();
  keep([edge = last_of_nucleus(others, others + size_, mass)](const Candidate& c) {
    return !better(edge, c);
  });
}

// Halves where the nucleus ends, as a quick sort of that half alone would.
Candidates::Candidate Candidates::last_of_nucleus(Candidate* first, Candidate* last, double mass) {
  constexpr std::ptrdiff_t kFew = 32;
  while (last - first > kFew) {
    Candidate three[3] = {*first, first[(last - first) / 2], last[-1]};
    std::sort(three, three + 3, better);
    Candidate* middle = std::partition(
        first, last, [pivot = three[1]](const Candidate& c) { return better(c, pivot); });
    double sum = 0;
    for (const Candidate* c = first; c < middle; c++) sum += static_cast<double>(c->weight);
    if (sum >= mass) {
      last = middle;
    } else {
      mass -= sum;
      first = middle;
    }
  }
  std::sort(first, last, better);
  double sum = static_cast<double>(first->weight);
  while (sum < mass && first + 1 < last) sum += static_cast<double>((++first)->weight);
  return *first;
}

int32_t Candidates::draw(double uniform) const {
  return ids_[place_in({weights_.get(), size_}, uniform).index];
}

Candidates::Candidate* Candidates::unranked() {
  for (size_t i = 0; i < size_; i++) others_[i] = at(i);
  return others_.get();
}

template <class Keep>
void Candidates::keep(const Keep& stays) {
  size_t size = 0;
  for (size_t i = 0; i < size_; i++) {
    const Candidate c = at(i);
    logits_[size] = c.logit;
    weights_[size] = c.weight;
    ids_[size] = c.id;
    size += stays(c);
  }
  size_ = size;
}

}  // namespace headrace
