// Panels of the levels whose wide operands are floats: along k, 32 columns beside one another.
//   bf16   bf16 [k][32]
//   i8     float scales [32], int8 [k / 2][32][2]
//   i8a8   float scales [32], int8 [k / 4][32][4]
//   q8     groups of scales [32], int8 [16][32][2]
//   q4     groups of scales [32], minimums [32], uint16 [4][32][2]: nibble s of half h of word i of
//          a column is number 8 i + 2 s + h of the group
// A block of the cache holds keys as [width][32 tokens] and values as [32 tokens][width], in bf16
// or int8; after them, for int8, the 32 scales of the keys and those of the values.
#pragma once

#include "../kernels.h"
#include "scale.h"
#include "vec.h"

namespace headrace {
namespace {

// How far before its use a weight is asked for; the processor itself stops at the end of a page.
constexpr size_t kAhead = 4096;

constexpr size_t kColumnScales = kPanel * sizeof(float);

constexpr size_t kGroupScales = kPanel * sizeof(Scale);
constexpr size_t kQ8Group = kGroupScales + kGroup * kPanel;
constexpr size_t kQ4Group = 2 * kGroupScales + kGroup * kPanel / 2;

constexpr bool is_grouped(WeightKind kind) {
  return kind == WeightKind::q8 || kind == WeightKind::q4;
}

inline size_t panel_bytes(WeightKind kind, int real_k) {
  const size_t k = static_cast<size_t>(round_up(real_k, kPad));
  if (kind == WeightKind::q8) return k / kGroup * kQ8Group;
  if (kind == WeightKind::q4) return k / kGroup * kQ4Group;
  if (kind == WeightKind::bf16) return k * kPanel * sizeof(Bf16);
  return kColumnScales + k * kPanel;
}

// Where number k of column c is: the byte of its nibble, for q4.
inline size_t quant_place(WeightKind kind, int k, int c) {
  const size_t row = static_cast<size_t>(k), column = static_cast<size_t>(c);
  const size_t group = row / kGroup, i = row % kGroup;
  switch (kind) {
    case WeightKind::bf16:
      return (row * kPanel + column) * sizeof(Bf16);
    case WeightKind::i8:
      return kColumnScales + row / 2 * kPanel * 2 + column * 2 + row % 2;
    case WeightKind::i8a8:
      return kColumnScales + row / 4 * kPanel * 4 + column * 4 + row % 4;
    case WeightKind::q8:
      return group * kQ8Group + kGroupScales + i / 2 * kPanel * 2 + column * 2 + i % 2;
    case WeightKind::q4:
      break;
  }
  return group * kQ4Group + 2 * kGroupScales + i / 8 * kPanel * 4 + column * 4 + i % 2 * 2 +
         i % 8 / 4;
}

// Where in its byte the nibble of number k stands.
constexpr int nibble_shift(int k) { return k / 2 % 2 * 4; }

// Where the scale of a group of column c is; the minimum is kGroupScales further.
inline size_t scale_place(WeightKind kind, int k, int c) {
  const size_t group = static_cast<size_t>(k / kGroup);
  return group * (kind == WeightKind::q8 ? kQ8Group : kQ4Group) +
         static_cast<size_t>(c) * sizeof(Scale);
}

inline void pack_quants(WeightKind kind, const Columns& in, uint8_t* panel) {
  for (int c = 0; c < kPanel; c++) {
    const int8_t* column = in.quants + static_cast<size_t>(c) * static_cast<size_t>(in.k);
    for (int k = 0; k < in.k; k++) {
      uint8_t& out = panel[quant_place(kind, k, c)];
      if (kind == WeightKind::q4) {
        out = static_cast<uint8_t>(out | (column[k] & 15) << nibble_shift(k));
      } else {
        out = static_cast<uint8_t>(column[k]);
      }
    }
  }
}

inline void pack_scales(WeightKind kind, const float* scales, int k, uint8_t* panel) {
  const int groups = (k + kGroup - 1) / kGroup;
  for (int c = 0; c < kPanel; c++) {
    for (int g = 0; g < groups; g++) {
      store_as(panel + scale_place(kind, g * kGroup, c), to_scale(scales[c * groups + g]));
    }
  }
}

inline void pack(WeightKind kind, const Columns& in, uint8_t* panel) {
  memset(panel, 0, panel_bytes(kind, in.k));
  if (kind == WeightKind::bf16) {
    for (int c = 0; c < kPanel; c++) {
      for (int k = 0; k < in.k; k++) {
        const size_t from =
            static_cast<size_t>(c) * static_cast<size_t>(in.k) + static_cast<size_t>(k);
        store_as(panel + quant_place(kind, k, c), to_bf16(in.values[from]));
      }
    }
    return;
  }
  if (is_grouped(kind)) {
    pack_scales(kind, in.scales, in.k, panel);
    if (kind == WeightKind::q4) pack_scales(kind, in.minimums, in.k, panel + kGroupScales);
  } else {
    memcpy(panel, in.scales, kColumnScales);
  }
  pack_quants(kind, in, panel);
}

inline float read_number(WeightKind kind, const uint8_t* panel, int k, int c) {
  const uint8_t* place = panel + quant_place(kind, k, c);
  if (kind == WeightKind::bf16) return to_float(load_as<Bf16>(place));
  const float q = static_cast<float>(static_cast<int8_t>(*place));
  if (!is_grouped(kind)) return load_as<float>(panel + static_cast<size_t>(c) * sizeof(float)) * q;
  const uint8_t* group = panel + scale_place(kind, k, c);
  const float scale = from_scale(load_as<Scale>(group));
  if (kind == WeightKind::q8) return scale * q;
  const int nibble = *place >> nibble_shift(k) & 15;
  const float minimum = from_scale(load_as<Scale>(group + kGroupScales));
  return fma(splat(scale), splat(static_cast<float>(nibble)), splat(minimum))[0];
}

inline void read_column(const Matrix& m, int column, float* out) {
  const uint8_t* panel = m.panels + static_cast<size_t>(column / kPanel) * m.panel_bytes;
  for (int k = 0; k < m.k; k++) out[k] = read_number(m.kind, panel, k, column % kPanel);
}

inline size_t head_bytes(CacheKind cache, int width) {
  const size_t numbers = 2 * kBlock * static_cast<size_t>(width);
  if (cache == CacheKind::bf16) return numbers * sizeof(Bf16);
  return numbers + 2 * kBlock * sizeof(float);
}

inline const float* key_scales(const uint8_t* head, int width) {
  return reinterpret_cast<const float*>(head + 2 * kBlock * static_cast<size_t>(width));
}
inline const float* value_scales(const uint8_t* head, int width) {
  return key_scales(head, width) + kBlock;
}

inline void put_key(const float* row, int width, CacheKind cache, int slot, uint8_t* head) {
  const size_t token = static_cast<size_t>(slot), end = static_cast<size_t>(width);
  if (cache == CacheKind::bf16) {
    Bf16* keys = reinterpret_cast<Bf16*>(head);
    for (size_t i = 0; i < end; i++) keys[i * kBlock + token] = to_bf16(row[i]);
    return;
  }
  int8_t quants[kMaxHead];
  float* scales = reinterpret_cast<float*>(head + 2 * kBlock * end);
  quantise(row, width, quants, scales + token);
  for (size_t i = 0; i < end; i++) head[i * kBlock + token] = static_cast<uint8_t>(quants[i]);
}

inline void put_value(const float* row, int width, CacheKind cache, int slot, uint8_t* head) {
  const size_t token = static_cast<size_t>(slot), end = static_cast<size_t>(width);
  if (cache == CacheKind::bf16) {
    Bf16* values = reinterpret_cast<Bf16*>(head) + (kBlock + token) * end;
    for (int i = 0; i < width; i += kLanes) store(values + i, load(row + i));
    return;
  }
  float* scales = reinterpret_cast<float*>(head + 2 * kBlock * end) + kBlock;
  quantise(row, width, reinterpret_cast<int8_t*>(head + (kBlock + token) * end), scales + token);
}

}  // namespace
}  // namespace headrace
