// Panels of the levels whose wide operands are floats: along k, 32 columns beside one another.
//   bf16   bf16 [k][32]
//   i8     float scales [32], int8 [k][32]
//   i8a8   float scales [32], int8 [k / 4][32][4]
//   q8     scales [k / 32][32], int8 [k][32]
//   q4     scales and minimums [k / 32][32] each, words [k / 32][4][32]:
//          nibble s of word i of a column is number 4 s + i of the group
// A block of the cache holds keys as [width][32 tokens] and values as [32 tokens][width], in bf16
// or int8; after them, for int8, the 32 scales of the keys and those of the values.
#pragma once

#include "../kernels.h"
#include "scale.h"
#include "vec.h"

namespace headrace {
namespace {

constexpr size_t kColumnScales = kPanel * sizeof(float);

// Where the parts of a panel begin.
struct PanelShape {
  int k, groups;  // padded
  size_t minimums, quants, bytes;
};

constexpr PanelShape panel_shape(WeightKind kind, int real_k) {
  PanelShape s{};
  s.k = round_up(real_k, kPad);
  s.groups = s.k / kGroup;
  const size_t numbers = static_cast<size_t>(s.k) * kPanel;
  const size_t scales = static_cast<size_t>(s.groups) * kPanel * sizeof(Scale);
  switch (kind) {
    case WeightKind::bf16:
      s.bytes = numbers * sizeof(Bf16);
      break;
    case WeightKind::i8:
    case WeightKind::i8a8:
      s.quants = kColumnScales;
      s.bytes = s.quants + numbers;
      break;
    case WeightKind::q8:
      s.quants = scales;
      s.bytes = s.quants + numbers;
      break;
    case WeightKind::q4:
      s.minimums = scales;
      s.quants = 2 * scales;
      s.bytes = s.quants + numbers / 2;
      break;
  }
  return s;
}

inline size_t panel_bytes(WeightKind kind, int k) { return panel_shape(kind, k).bytes; }

// Place of number k of column c among the quants.
inline size_t quant_place(WeightKind kind, int k, int c) {
  const size_t row = static_cast<size_t>(k), column = static_cast<size_t>(c);
  if (kind == WeightKind::i8a8) return row / 4 * kPanel * 4 + column * 4 + row % 4;
  if (kind == WeightKind::q4) {  // the byte of its nibble
    return (row / kGroup * 4 + row % 4) * kPanel * 4 + column * 4 + row % kGroup / 8;
  }
  return row * kPanel + column;
}

inline void pack_quants(WeightKind kind, const Columns& in, uint8_t* quants) {
  for (int c = 0; c < kPanel; c++) {
    const int8_t* column = in.quants + static_cast<size_t>(c) * static_cast<size_t>(in.k);
    for (int k = 0; k < in.k; k++) {
      uint8_t& out = quants[quant_place(kind, k, c)];
      if (kind == WeightKind::q4) {
        out = static_cast<uint8_t>(out | (column[k] & 15) << (k % 8 < 4 ? 0 : 4));
      } else {
        out = static_cast<uint8_t>(column[k]);
      }
    }
  }
}

inline void pack_scales(const float* scales, int k, uint8_t* panel) {
  const int groups = (k + kGroup - 1) / kGroup;
  for (int c = 0; c < kPanel; c++) {
    for (int g = 0; g < groups; g++) {
      const size_t place = (static_cast<size_t>(g) * kPanel + static_cast<size_t>(c));
      store_as(panel + place * sizeof(Scale), to_scale(scales[c * groups + g]));
    }
  }
}

inline void pack(WeightKind kind, const Columns& in, uint8_t* panel) {
  const PanelShape shape = panel_shape(kind, in.k);
  memset(panel, 0, shape.bytes);
  if (kind == WeightKind::bf16) {
    for (int c = 0; c < kPanel; c++) {
      for (int k = 0; k < in.k; k++) {
        const size_t from =
            static_cast<size_t>(c) * static_cast<size_t>(in.k) + static_cast<size_t>(k);
        store_as(panel + quant_place(kind, k, c) * sizeof(Bf16), to_bf16(in.values[from]));
      }
    }
    return;
  }
  if (kind == WeightKind::i8 || kind == WeightKind::i8a8) {
    memcpy(panel, in.scales, kColumnScales);
  } else {
    pack_scales(in.scales, in.k, panel);
    if (kind == WeightKind::q4) pack_scales(in.minimums, in.k, panel + shape.minimums);
  }
  pack_quants(kind, in, panel + shape.quants);
}

inline void read_column(const Matrix& m, int column, float* out) {
  const PanelShape shape = panel_shape(m.kind, m.k);
  const uint8_t* panel = m.panels + static_cast<size_t>(column / kPanel) * m.panel_bytes;
  const int c = column % kPanel;
  for (int k = 0; k < m.k; k++) {
    const size_t place = quant_place(m.kind, k, c);
    const uint8_t* quant = panel + shape.quants + place;
    const size_t group =
        (static_cast<size_t>(k / kGroup) * kPanel + static_cast<size_t>(c)) * sizeof(Scale);
    const float q = static_cast<float>(static_cast<int8_t>(*quant));
    switch (m.kind) {
      case WeightKind::bf16:
        out[k] = to_float(load_as<Bf16>(panel + place * sizeof(Bf16)));
        break;
      case WeightKind::i8:
      case WeightKind::i8a8:
        out[k] = load_as<float>(panel + static_cast<size_t>(c) * sizeof(float)) * q;
        break;
      case WeightKind::q8:
        out[k] = from_scale(load_as<Scale>(panel + group)) * q;
        break;
      case WeightKind::q4: {
        const int nibble = k % 8 < 4 ? *quant & 15 : *quant >> 4;
        const Floats value =
            fma(splat(from_scale(load_as<Scale>(panel + group))), splat(static_cast<float>(nibble)),
                splat(from_scale(load_as<Scale>(panel + shape.minimums + group))));
        out[k] = value[0];
        break;
      }
    }
  }
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
