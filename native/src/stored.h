// The number formats that checkpoints store and how each becomes float.
//
// Block layouts are those of ggml; results equal headrace.modelfiles.quantization bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

struct StoredFormat {
  std::string_view name;
  int block_length;                                  // numbers in a block
  size_t block_bytes;                                // where they lie
  void (*expand)(const uint8_t* block, float* out);  // one block

  // One group of kGroup numbers as stored, value = scale * quant + minimum; null where the format
  // has no such groups. `group` counts within the block.
  void (*read_group)(const uint8_t* block, int group, int8_t* quants, float* scale, float* minimum);
  bool has_minimum;  // quants are 0..15 with a minimum, else int8 without one
};

// Null for a format that is not known.
const StoredFormat* find_format(std::string_view name);
// All names, for messages.
std::string_view format_names();

// `count` numbers, a multiple of the block's length.
void expand(const StoredFormat& format, const uint8_t* blocks, size_t count, float* out);

float half_to_float(uint16_t half);
uint16_t float_to_bf16(float value);  // to nearest, ties to even; the value is finite
float bf16_to_float(uint16_t value);

}  // namespace headrace
