#include "stored.h"

#include <bit>
#include <cstring>

#include "kernels.h"

namespace headrace {
namespace {

constexpr int kSuper = 256;  // numbers in a block of the K formats

float half_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half_to_float(half);
}

void f32(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof *out); }
void f16(const uint8_t* block, float* out) { *out = half_at(block); }
void bf16(const uint8_t* block, float* out) {
  uint16_t value;
  std::memcpy(&value, block, sizeof value);
  *out = bf16_to_float(value);
}

// The i-th of 32 quants of 4 bits: low halves first, then high ones.
int nibble(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }
// Bit 4 of the i-th of 32 quants.
int fifth_bit(const uint8_t* flags, int i) { return (flags[i / 8] >> (i % 8) & 1) << 4; }

void q4_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; i++) out[i] = static_cast<float>(nibble(block + 2, i) - 8) * scale;
}
void q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 32; i++) out[i] = static_cast<float>(nibble(block + 4, i)) * scale + minimum;
}
void q5_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; i++) {
    out[i] = static_cast<float>((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16) * scale;
  }
}
void q5_1(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 32; i++) {
    out[i] = static_cast<float>(nibble(block + 8, i) | fifth_bit(block + 4, i)) * scale + minimum;
  }
}
void q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; i++)
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
}

// Scale and minimum of one of the eight groups, 6 bits each, that 12 bytes hold.
struct KScale {
  int scale, minimum;
};
KScale k_scale(const uint8_t* packed, int group) {
  const uint8_t *low = packed, *middle = packed + 4, *high = packed + 8;
  if (group < 4) return {low[group] & 63, middle[group] & 63};
  const int i = group - 4;
  return {(high[i] & 15) | (low[i] >> 2 & 0x30), (high[i] >> 4) | (middle[i] >> 2 & 0x30)};
}

// Quant i of group `group`, of 128 bytes: each run of 32 bytes gives one group its low halves and
// the next group its high ones.
int k_nibble(const uint8_t* bytes, int group, int i) {
  const uint8_t byte = bytes[group / 2 * 32 + i];
  return group % 2 == 0 ? byte & 15 : byte >> 4;
}

void q4_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; group++) {
    const KScale k = k_scale(block + 4, group);
    const float scale = d * static_cast<float>(k.scale);
    const float minimum = dmin * static_cast<float>(k.minimum);
    for (int i = 0; i < 32; i++, out++) {
      *out = static_cast<float>(k_nibble(block + 16, group, i)) * scale - minimum;
    }
  }
}
void q5_k(const uint8_t* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; group++) {
    const KScale k = k_scale(block + 4, group);
    const float scale = d * static_cast<float>(k.scale);
    const float minimum = dmin * static_cast<float>(k.minimum);
    for (int i = 0; i < 32; i++, out++) {
      const int fifth = (block[16 + i] >> group & 1) << 4;
      *out = static_cast<float>(k_nibble(block + 48, group, i) | fifth) * scale - minimum;
    }
  }
}
// Two halves of 128 numbers: 64 bytes of low bits, 32 of high ones, eight scales for 16 each.
void q6_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 208);
  for (int i = 0; i < kSuper; i++) {
    const int half = i / 128, run = i % 128 / 32, lane = i % 32;
    const int low = block[half * 64 + run % 2 * 32 + lane] >> (run / 2 * 4) & 15;
    const int high = block[128 + half * 32 + lane] >> (run * 2) & 3;
    const int8_t scale = static_cast<int8_t>(block[192 + i / 16]);
    out[i] = static_cast<float>((low | high << 4) - 32) * (d * static_cast<float>(scale));
  }
}

void nibbles(const uint8_t* bytes, int8_t* quants) {
  for (int i = 0; i < kGroup; i++) quants[i] = static_cast<int8_t>(nibble(bytes, i));
}
void q4_0_group(const uint8_t* block, int, int8_t* quants, float* scale, float* minimum) {
  *scale = half_at(block);
  *minimum = -8 * *scale;
  nibbles(block + 2, quants);
}
void q4_1_group(const uint8_t* block, int, int8_t* quants, float* scale, float* minimum) {
  *scale = half_at(block);
  *minimum = half_at(block + 2);
  nibbles(block + 4, quants);
}
void q8_0_group(const uint8_t* block, int, int8_t* quants, float* scale, float* minimum) {
  *scale = half_at(block);
  *minimum = 0;
  std::memcpy(quants, block + 2, kGroup);
}
void q4_k_group(const uint8_t* block, int group, int8_t* quants, float* scale, float* minimum) {
  const KScale k = k_scale(block + 4, group);
  *scale = half_at(block) * static_cast<float>(k.scale);
  *minimum = -(half_at(block + 2) * static_cast<float>(k.minimum));
  for (int i = 0; i < kGroup; i++) {
    quants[i] = static_cast<int8_t>(k_nibble(block + 16, group, i));
  }
}

constexpr StoredFormat kFormats[] = {
    {"F32", 1, 4, f32, nullptr, false},
    {"F16", 1, 2, f16, nullptr, false},
    {"BF16", 1, 2, bf16, nullptr, false},
    {"Q8_0", 32, 34, q8_0, q8_0_group, false},
    {"Q4_0", 32, 18, q4_0, q4_0_group, true},
    {"Q4_1", 32, 20, q4_1, q4_1_group, true},
    {"Q5_0", 32, 22, q5_0, nullptr, false},
    {"Q5_1", 32, 24, q5_1, nullptr, false},
    {"Q4_K", kSuper, 144, q4_k, q4_k_group, true},
    {"Q5_K", kSuper, 176, q5_k, nullptr, false},
    {"Q6_K", kSuper, 210, q6_k, nullptr, false},
};

}  // namespace

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinite or NaN
    return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

const StoredFormat* find_format(std::string_view name) {
  for (const StoredFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::string_view format_names() {
  return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
}

void expand(const StoredFormat& format, const uint8_t* blocks, size_t count, float* out) {
  // The unquantised ones in loops of their own: a call for each number would cost more than it.
  if (format.expand == f32) {
    std::memcpy(out, blocks, count * sizeof *out);
  } else if (format.expand == f16) {
    for (size_t i = 0; i < count; i++) f16(blocks + 2 * i, out + i);
  } else if (format.expand == bf16) {
    for (size_t i = 0; i < count; i++) bf16(blocks + 2 * i, out + i);
  } else {
    const size_t length = static_cast<size_t>(format.block_length);
    for (size_t i = 0; i < count; i += length, blocks += format.block_bytes) {
      format.expand(blocks, out + i);
    }
  }
}

}  // namespace headrace
