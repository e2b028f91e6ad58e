// Panels of the levels that multiply bf16 and int8 directly: 32 columns by 64 bytes of k, in two
// tiles of 16 columns. A tile is 16 rows of 64 bytes; a row holds 2 (bf16) or 4 (int8) numbers that
// follow each other along k for each of its columns. That is the order of an AMX tile and of the
// operands of vdpbf16ps and vpdpbusd. A panel begins with its columns' scales.
//
// Weights with a wide operand are stored as codes in groups of 32 along k, and expanded to the
// tiles of one bf16 step just before they are multiplied. A row of 64 codes expands to two tile
// rows.
#pragma once

#include "../kernels.h"
#include "vec.h"

namespace headrace {
namespace {

constexpr size_t kStep = 2048;   // bytes of 32 columns by 64 bytes of k
constexpr size_t kTile = 1024;   // half of it
constexpr size_t kCodeRow = 64;  // 16 columns by 4 codes
constexpr size_t kScales = kPanel * sizeof(float);
constexpr size_t kHalves =
    kPanel * sizeof(uint16_t);  // scales or minimums of a group, in half precision

constexpr size_t as_size(int value) { return static_cast<size_t>(value); }

constexpr bool is_expanded(WeightKind kind) {
  return kind != WeightKind::bf16 && kind != WeightKind::i8a8;
}

// Bytes of one group (32 columns by 32 of k) before its codes, and with them.
constexpr size_t group_head(WeightKind kind) {
  return kind == WeightKind::q4 ? 2 * kHalves : kind == WeightKind::q8 ? kHalves : 0;
}
constexpr size_t group_bytes(WeightKind kind) {
  return group_head(kind) + (kind == WeightKind::q4 ? 512 : 1024);
}

inline size_t panel_size(WeightKind kind, int k) {
  const size_t padded = as_size(round_up(k, kPad));
  if (kind == WeightKind::bf16) return kScales + padded * kPanel * 2;
  if (kind == WeightKind::i8a8) return kScales + padded * kPanel;
  return kScales + padded / kGroup * group_bytes(kind);
}

// Where number k of a column lies, counted from the first step.
constexpr size_t wide_place(int column, int k) {
  return as_size(k / 32) * kStep + as_size(column / 16) * kTile + as_size(k % 32 / 2 * 64) +
         as_size(column % 16 * 4 + k % 2 * 2);
}
constexpr size_t byte_place(int column, int k) {
  return as_size(k / 64) * kStep + as_size(column / 16) * kTile + as_size(k % 64 / 4 * 64) +
         as_size(column % 16 * 4 + k % 4);
}
// The code of number k of a group's column; `within` gives the level's order inside a row.
template <class Order>
constexpr size_t code_place(int column, int k, Order within) {
  return as_size(column / 16) * 8 * kCodeRow + as_size(k / 4) * kCodeRow +
         as_size(within(column % 16, k % 4));
}
// The same of a 4-bit code, two rows in one: the byte; the high half where k / 4 is odd.
template <class Order>
constexpr size_t nibble_place(int column, int k, Order within) {
  return as_size(column / 16) * 4 * kCodeRow + as_size(k / 8) * kCodeRow +
         as_size(within(column % 16, k % 4));
}

// The power of two that brings a column's greatest weight to 2^15 or a little less, where half
// precision has room for groups that are 2^22 times smaller; 0 for a column of zeros.
inline float column_unit(const Columns& w, int column, bool four_bits) {
  const size_t groups = as_size((w.k + kGroup - 1) / kGroup);
  float most = 0;
  for (size_t g = as_size(column) * groups; g < (as_size(column) + 1) * groups; g++) {
    const float reach = __builtin_fabsf(w.scales[g]) * (four_bits ? 15.f : 128.f) +
                        (four_bits ? __builtin_fabsf(w.minimums[g]) : 0.f);
    if (reach > most) most = reach;
  }
  if (most == 0) return 0.f;
  if (!(most < kInfinity)) return 1.f;
  int exponent;
  __builtin_frexpf(most, &exponent);
  return __builtin_ldexpf(1.f, exponent - 15 > -126 ? exponent - 15 : -126);
}

inline uint16_t to_half(float x) { return static_cast<uint16_t>(_cvtss_sh(x, 0)); }

inline void put_half(uint8_t* group, size_t first, int column, float x) {
  const uint16_t half = to_half(x);
  memcpy(group + first + as_size(column) * sizeof half, &half, sizeof half);
}

// Lines of the panel that this thread takes next, a few at a time: a burst of prefetches fills the
// line buffers and stalls as long as reading would.
class NextPanel {
 public:
  NextPanel(const uint8_t* panel, size_t bytes) : at_(panel), end_(panel ? panel + bytes : panel) {}
  HEADRACE_INLINE void lines(int count) {
    if (at_ >= end_) return;
    for (int i = 0; i < count; i++) prefetch(at_ + i * 64);
    at_ += count * 64;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// Where the steps of a panel lie.
struct Linear {
  const uint8_t* first;
  HEADRACE_INLINE const uint8_t* operator()(int k) const { return first + as_size(k) * kStep; }
};
struct Ring {
  const uint8_t* first;
  int mask;
  HEADRACE_INLINE const uint8_t* operator()(int k) const {
    return first + as_size(k & mask) * kStep;
  }
};

struct NoHook {
  HEADRACE_INLINE void operator()(int, int) const {}
};

}  // namespace
}  // namespace headrace
