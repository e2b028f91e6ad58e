#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

namespace headrace {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr int kDrawChunk = 256;  // numbers whose weights are summed together

size_t chunk_count(int vocab_size) {
  return static_cast<size_t>((vocab_size + kDrawChunk - 1) / kDrawChunk);
}

void forbid(float* logits, int vocab_size, const uint32_t* mask) {
  for (int first = 0; first < vocab_size; first += 32) {
    const uint32_t allowed = mask[first / 32];
    if (allowed == ~0u) continue;
    for (int id = first; id < std::min(first + 32, vocab_size); id++) {
      if (!(allowed >> id % 32 & 1)) logits[id] = kImpossible;
    }
  }
}

struct Named {
  float logit;
  int32_t id;
};

// Of a NaN and a number, the NaN.
float greater(float a, float b) { return a > b || std::isnan(a) ? a : b; }

float largest(std::span<const float> numbers) {
  float most = kImpossible;
  for (const float x : numbers) most = greater(most, x);
  return most;
}

bool likelier(const Named& a, const Named& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

}  // namespace

struct RowSampler::Limits {
  size_t top_k;  // the vocabulary's size: off
  double top_p, min_p, temperature;

  Limits(const SamplingInput& in, int row, int vocab_size)
      : top_k(
            static_cast<size_t>(in.top_k[row] ? std::min(in.top_k[row], vocab_size) : vocab_size)),
        top_p(in.top_p[row]),
        min_p(in.min_p[row]),
        temperature(in.temperature[row]) {}

  // A tiny temperature leaves the best token.
  Scaling scaling(float most) const {
    const double bounded = std::max(temperature, 1e-30);
    return {most, static_cast<float>(1 / bounded), bounded};
  }
};

RowSampler::RowSampler(const Kernels& kernels, int vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      maxima_(static_cast<size_t>((vocab_size + kPanel - 1) / kPanel)),
      other_maxima_(maxima_.size()),
      chunk_sums_(chunk_count(vocab_size)),
      candidates_(kernels, vocab_size) {}

void RowSampler::sample(const SamplingInput& in, int row, const RowLogits& logits,
                        const SamplingOutput& out) {
  for (size_t p = 0; p < maxima_.size(); p++) maxima_[p] = logits.panels[p].max;
  if (logits.mask) forbid(logits.values, vocab_size_, logits.mask);
  const int num_top = in.num_top[row];
  if (out.max_top) {
    const auto place = static_cast<size_t>(row) * static_cast<size_t>(out.max_top);
    name_likeliest(logits, std::max(num_top, 0), out.max_top, out.top_ids + place,
                   out.top_logprobs + place);
  }
  int32_t token = in.target[row];
  if (token < 0) {
    if (in.edit_begins) edit(in, row, logits.values);
    token = choose(logits.values, Limits(in, row, vocab_size_), in.uniform[row]);
    if (in.edit_begins) undo(in, row, logits.values);
  }
  out.token_ids[row] = token;
  if (out.logprobs)
    out.logprobs[row] = num_top < 0 || token < 0 ? 0 : logits.values[token] - logits.log_sum_exp;
}

void RowSampler::edit(const SamplingInput& in, int row, float* logits) {
  const int32_t begin = in.edit_begins[row], end = in.edit_begins[row + 1];
  before_.resize(static_cast<size_t>(end - begin));
  for (int32_t e = begin; e < end; e++) {
    float& x = logits[in.edit_ids[e]];
    before_[static_cast<size_t>(e - begin)] = x;
    x = (x > 0 ? x / in.edit_repetitions[e] : x * in.edit_repetitions[e]) + in.edit_terms[e];
    update_maximum(logits, in.edit_ids[e], before_[static_cast<size_t>(e - begin)]);
  }
}

void RowSampler::undo(const SamplingInput& in, int row, float* logits) {
  const int32_t begin = in.edit_begins[row];
  for (int32_t e = in.edit_begins[row + 1]; e-- > begin;) {
    logits[in.edit_ids[e]] = before_[static_cast<size_t>(e - begin)];
  }
}

void RowSampler::update_maximum(const float* logits, int32_t id, float before) {
  float& maximum = maxima_[static_cast<size_t>(id / kPanel)];
  if (logits[id] < before && before == maximum) {
    const int first = id / kPanel * kPanel, end = std::min(first + kPanel, vocab_size_);
    maximum = largest({logits + first, logits + end});
  } else {
    maximum = greater(maximum, logits[id]);
  }
}

// A heap whose front is the worst of those kept. Panels whose largest is no better are not read.
void RowSampler::name_likeliest(const RowLogits& logits, int count, int max_top, int32_t* ids,
                                float* logprobs) {
  std::vector<Named> kept;
  kept.reserve(static_cast<size_t>(count) + 1);
  for (int id = 0; id < vocab_size_ && count; id++) {
    const bool full = kept.size() == static_cast<size_t>(count);
    if (full && id % kPanel == 0 && !(maxima_[static_cast<size_t>(id / kPanel)] > kept[0].logit)) {
      id += kPanel - 1;
      continue;
    }
    const float logit = std::isnan(logits.values[id]) ? kImpossible : logits.values[id];
    if (full && logit <= kept[0].logit) continue;  // of equal ones the higher id loses
    kept.push_back({logit, id});
    std::push_heap(kept.begin(), kept.end(), likelier);
    if (!full) continue;
    std::pop_heap(kept.begin(), kept.end(), likelier);
    kept.pop_back();
  }
  std::sort_heap(kept.begin(), kept.end(), likelier);
  for (size_t i = 0; i < static_cast<size_t>(max_top); i++) {
    ids[i] = i < kept.size() ? kept[i].id : -1;
    logprobs[i] = i < kept.size() ? kept[i].logit - logits.log_sum_exp : 0;
  }
}

int32_t RowSampler::choose(const float* logits, const Limits& limits, double uniform) {
  const float most = largest(maxima_);
  if (!std::isfinite(most)) return -1;
  if (limits.temperature == 0) return first_of(logits, most);
  const Scaling scaling = limits.scaling(most);
  const bool by_rank = limits.top_k < static_cast<size_t>(vocab_size_) || limits.min_p > 0;
  if (!by_rank && limits.top_p == 1) return draw_from_all(logits, scaling, uniform);
  if (by_rank) {
    const float floor = std::max(scaling.floor_of(limits.min_p), top_k_floor(limits.top_k));
    candidates_.gather(logits, maxima_, floor);
    candidates_.weigh(scaling, limits.min_p);
    candidates_.keep_top_k(limits.top_k);
    if (limits.top_p < 1) candidates_.keep_nucleus(limits.top_p * candidates_.mass());
  } else {
    const double total = weigh_all(logits, scaling);
    // Tokens lighter than this weigh less than 1 - top_p of the total together.
    const double light = (1 - limits.top_p) * total / vocab_size_ * (1 - 1e-6);
    candidates_.gather(logits, maxima_, scaling.floor_of(light));
    candidates_.weigh(scaling, 0);
    candidates_.keep_nucleus(limits.top_p * total);
  }
  return candidates_.draw(uniform);
}

int32_t RowSampler::first_of(const float* logits, float value) const {
  const auto panel = std::find(maxima_.begin(), maxima_.end(), value);
  if (panel == maxima_.end()) return -1;
  const float *first = logits + (panel - maxima_.begin()) * kPanel, *end = logits + vocab_size_;
  const float* place = std::find(first, end, value);
  return place == end ? -1 : static_cast<int32_t>(place - logits);
}

double RowSampler::weigh_all(const float* logits, const Scaling& scaling) {
  alignas(64) float weights[kDrawChunk];
  double total = 0;
  for (size_t c = 0; c < chunk_sums_.size(); c++) {
    const int first = static_cast<int>(c) * kDrawChunk;
    chunk_sums_[c] =
        kernels_.exponentials(logits + first, std::min(kDrawChunk, vocab_size_ - first),
                              scaling.most, scaling.scale, weights);
    total += static_cast<double>(chunk_sums_[c]);
  }
  return total;
}

// First the chunk, then the token within it.
int32_t RowSampler::draw_from_all(const float* logits, const Scaling& scaling, double uniform) {
  weigh_all(logits, scaling);
  const Place chunk = place_in(chunk_sums_, uniform);
  alignas(64) float weights[kDrawChunk];
  const int first = static_cast<int>(chunk.index) * kDrawChunk;
  const int count = std::min(kDrawChunk, vocab_size_ - first);
  kernels_.exponentials(logits + first, count, scaling.most, scaling.scale, weights);
  const Place token = place_in({weights, static_cast<size_t>(count)}, chunk.rest);
  return first + static_cast<int32_t>(token.index);
}

// A logit that at least k tokens reach: the k-th largest of the panels' largest.
float RowSampler::top_k_floor(size_t k) {
  if (k > maxima_.size()) return kImpossible;
  other_maxima_ = maxima_;
  const auto place = other_maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(other_maxima_.begin(), place, other_maxima_.end(), std::greater<>());
  return *place;
}

}  // namespace headrace
