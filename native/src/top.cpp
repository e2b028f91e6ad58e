#include "top.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.h"

namespace headrace {
namespace {

struct Candidate {
  float value;
  int32_t id;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// A heap whose front is the worst of those kept.
void replace_worst(std::vector<Candidate>& kept, Candidate candidate) {
  std::pop_heap(kept.begin(), kept.end(), better);
  kept.back() = candidate;
  std::push_heap(kept.begin(), kept.end(), better);
}

void select_row(const float* row, int width, int top, int32_t* ids, float* values,
                std::vector<Candidate>& kept) {
  constexpr int kRun = 64;  // numbers looked at together: few runs hold one that is kept
  kept.clear();
  for (int i = 0; i < top; i++) {
    kept.push_back({std::isnan(row[i]) ? -std::numeric_limits<float>::infinity() : row[i], i});
  }
  std::make_heap(kept.begin(), kept.end(), better);
  for (int first = top; first < width; first += kRun) {
    const int end = std::min(first + kRun, width);
    const float worst = kept.front().value;
    bool any = false;
    for (int i = first; i < end; i++) any |= row[i] > worst;
    if (!any) continue;
    for (int i = first; i < end; i++) {
      // Equal ones lose: their ids are higher.
      if (row[i] > kept.front().value) replace_worst(kept, {row[i], i});
    }
  }
  std::sort_heap(kept.begin(), kept.end(), better);
  for (int i = 0; i < top; i++) {
    ids[i] = kept[static_cast<size_t>(i)].id;
    values[i] = kept[static_cast<size_t>(i)].value;
  }
}

}  // namespace

void select_top(const Logits& logits, int top, int num_threads, int32_t* ids, float* values) {
  // Starting a thread takes as long as looking at about this many numbers.
  constexpr size_t kWorthAThread = size_t{1} << 19;
  const size_t count = static_cast<size_t>(logits.num_rows) * static_cast<size_t>(logits.width);
  const size_t threads =
      std::clamp<size_t>(count / kWorthAThread, 1, static_cast<size_t>(num_threads));
  std::vector<std::vector<Candidate>> kept(threads);
  for (auto& candidates : kept) candidates.reserve(static_cast<size_t>(top));
  for_each_unit(static_cast<int>(threads), static_cast<size_t>(logits.num_rows),
                [&](int thread, size_t row) {
                  const size_t at = row * static_cast<size_t>(top);
                  select_row(logits.row(static_cast<int>(row)), logits.width, top, ids + at,
                             values + at, kept[static_cast<size_t>(thread)]);
                });
}

}  // namespace headrace
