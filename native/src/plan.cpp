#include "plan.h"

#include <algorithm>

#include "threads.h"

namespace headrace {
namespace {

// Reading a block's keys and values takes about as long as multiplying them by this many rows.
constexpr int64_t kReadCost = 8;
constexpr int kChunkBlocks = kChunk / kBlock;

}  // namespace

AttentionPlan::AttentionPlan(const PlanShape& shape, int window, size_t max_items,
                             size_t max_partials)
    : shape_(shape), window_(window), max_items_(max_items), max_partials_(max_partials) {
  whole_.reserve(max_items);
  items_.reserve(max_items + max_partials);
  dealt_.reserve(max_items + max_partials);
  splits_.reserve(max_partials);
}

// Of the blocks in the item's chunks that one of its rows sees.
int64_t AttentionPlan::cost_of(const AttentionItem& item) const {
  const int group = shape_.num_heads / shape_.num_kv_heads;
  const int first = item.num_computed + item.first_row / group;
  const int last = item.num_computed + (item.first_row + item.num_rows - 1) / group;
  const int oldest = window_ && first >= window_ ? first - window_ + 1 : 0;
  const int begin = std::max(oldest / kBlock, item.first_chunk * kChunkBlocks);
  const int end = std::min(last / kBlock + 1, item.last_chunk * kChunkBlocks);
  return (end - begin) * (kReadCost + item.num_rows);
}

void AttentionPlan::add_whole(const Segment& segment) {
  const int group = shape_.num_heads / shape_.num_kv_heads;
  const int rows = segment.num_tokens * group;
  for (int head = 0; head < shape_.num_kv_heads; head++) {
    for (int row = 0; row < rows; row += kQueryRows) {
      AttentionItem item{};
      item.block_table = segment.block_table;
      item.first_token = segment.first_row;
      item.num_computed = segment.num_computed;
      item.kv_head = head;
      item.first_row = row;
      item.num_rows = std::min(kQueryRows, rows - row);
      const int first = segment.num_computed + row / group;
      const int last = segment.num_computed + (row + item.num_rows - 1) / group;
      item.first_chunk = window_ && first >= window_ ? (first - window_ + 1) / kChunk : 0;
      item.last_chunk = last / kChunk + 1;
      whole_.push_back({item, segment.first_token - segment.first_row, cost_of(item), 0});
    }
  }
}

void AttentionPlan::split(const AttentionWork& work, float* partials) {
  const int group = shape_.num_heads / shape_.num_kv_heads;
  const AttentionItem& whole = work.item;
  const size_t rows = static_cast<size_t>(whole.num_rows);
  const size_t stride = rows * shape_.row_floats;
  float* first = partials + used_partials_ * shape_.row_floats;
  const int count = whole.last_chunk - whole.first_chunk;
  for (int c = 0; c < count; c++) {
    AttentionWork part = work;
    part.item.first_chunk = whole.first_chunk + c;
    part.item.last_chunk = part.item.first_chunk + 1;
    part.item.partials = first + static_cast<size_t>(c) * stride;
    part.cost = cost_of(part.item);
    items_.push_back(part);
  }
  for (int r = 0; r < whole.num_rows; r++) {
    const int index = whole.first_row + r;
    splits_.push_back({whole.first_token + index / group, whole.kv_head * group + index % group,
                       first + static_cast<size_t>(r) * shape_.row_floats, stride, count});
  }
  used_partials_ += rows * static_cast<size_t>(count);
}

// The dearest first, in turn to every thread's own range; stealing evens out the rest.
void AttentionPlan::deal() {
  for (size_t i = 0; i < items_.size(); i++) items_[i].order = static_cast<int>(i);
  std::sort(items_.begin(), items_.end(), [](const AttentionWork& a, const AttentionWork& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.order < b.order;
  });
  const int total = static_cast<int>(items_.size()), threads = shape_.num_threads;
  dealt_.resize(items_.size());
  size_t next = 0;
  for (int turn = 0; next < items_.size(); turn++) {
    for (int t = 0; t < threads; t++) {
      const int place = Team::first_unit(total, threads, t) + turn;
      if (place >= Team::first_unit(total, threads, t + 1)) continue;
      dealt_[static_cast<size_t>(place)] = items_[next++];
    }
  }
}

void AttentionPlan::build(std::span<const Segment> segments, float* partials, bool apart) {
  whole_.clear();
  items_.clear();
  splits_.clear();
  used_partials_ = 0;
  for (const Segment& segment : segments) add_whole(segment);
  int64_t total = 0;
  for (const AttentionWork& work : whole_) total += work.cost;
  const int64_t dear = total / (2 * shape_.num_threads);
  for (const AttentionWork& work : whole_) {
    const int chunks = work.item.last_chunk - work.item.first_chunk;
    const size_t needed = static_cast<size_t>(chunks) * static_cast<size_t>(work.item.num_rows);
    const bool pays = shape_.num_threads > 1 && chunks > 1 && work.cost > dear &&
                      used_partials_ + needed <= max_partials_;
    if (apart || pays) {
      split(work, partials);
    } else {
      items_.push_back(work);
    }
  }
  deal();
}

}  // namespace headrace
