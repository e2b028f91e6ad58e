// Where the entries of a packed file lie, and the bytes that say so.
//
//   header (64 bytes) | tag | a record and a name for each entry | padding | data ...
//
// Data of matrices and tables begins at a multiple of 4 KiB, of vectors at a multiple of 64 bytes,
// in the order of the entries. Numbers are little-endian, as the machine has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weights.h"

namespace headrace {

struct Placed {
  Entry entry;
  size_t offset, num_bytes;  // in the file
  size_t unit_bytes;         // of a panel, a row of a table, or a vector
  size_t num_units;
};

struct Layout {
  std::vector<Placed> entries;
  size_t head_bytes;  // header, tag and records
  size_t file_bytes;
};

// std::invalid_argument naming the entry that cannot be.
Layout lay_out(const std::vector<Entry>& entries, const std::string& tag, const Kernels& kernels);

// Into the file's first head_bytes, without the checksum; `seal` sets that.
void write_head(const Layout& layout, const std::string& tag, const Kernels& kernels,
                std::span<uint8_t> file);
void seal(std::span<uint8_t> file, int num_threads);

// Null when these bytes are not a whole file of this tag and of these kernels' layout. Reads
// nothing beyond the span, whatever stands in it.
std::optional<Layout> read_head(std::span<const uint8_t> file, const std::string& tag,
                                const Kernels& kernels);
bool is_sealed(std::span<const uint8_t> file, int num_threads);

}  // namespace headrace
