// A fast 64-bit checksum against damage, not against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

// Of the whole span: pieces of 1 MiB are summed by any thread and combined in order, so the result
// does not depend on the number of threads.
uint64_t checksum(std::span<const uint8_t> bytes, int num_threads);

// The parts, for a reader that sums a piece while it lies in the cache.
constexpr size_t kChecksumPiece = size_t{1} << 20;
uint64_t checksum_piece(std::span<const uint8_t> piece);
uint64_t checksum_combine(std::span<const uint64_t> pieces, uint64_t num_bytes);

}  // namespace headrace
