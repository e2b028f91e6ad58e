#include "checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "parallel.h"

namespace headrace {
namespace {

// Odd constants with about half of their bits set: the fractions of the square roots of 2, 3 and 5.
constexpr uint64_t kFirst = 0x6a09e667f3bcc909;
constexpr uint64_t kSecond = 0xbb67ae8584caa73b;
constexpr uint64_t kThird = 0x3c6ef372fe94f82b;

constexpr int kLanes = 4;  // independent chains, so that multiplications overlap
constexpr size_t kStripe = kLanes * sizeof(uint64_t);

uint64_t mix(uint64_t lane, uint64_t word) { return std::rotl(lane + word * kFirst, 29) * kSecond; }

uint64_t spread(uint64_t value) {  // every bit of the input reaches every bit of the output
  value = (value ^ (value >> 32)) * kThird;
  value = (value ^ (value >> 29)) * kFirst;
  return value ^ (value >> 32);
}

}  // namespace

uint64_t checksum_piece(std::span<const uint8_t> piece) {
  uint64_t lanes[kLanes] = {kFirst, kSecond, kThird, ~kFirst};
  const uint8_t* at = piece.data();
  size_t left = piece.size();
  for (; left >= kStripe; at += kStripe, left -= kStripe) {
    uint64_t words[kLanes];
    std::memcpy(words, at, kStripe);
    for (int i = 0; i < kLanes; i++) lanes[i] = mix(lanes[i], words[i]);
  }
  uint64_t rest[kLanes] = {};
  if (left > 0) std::memcpy(rest, at, left);
  uint64_t sum = piece.size();
  for (int i = 0; i < kLanes; i++) sum = mix(sum, spread(mix(lanes[i], rest[i])));
  return spread(sum);
}

uint64_t checksum_combine(std::span<const uint64_t> pieces, uint64_t num_bytes) {
  uint64_t sum = num_bytes;
  for (const uint64_t piece : pieces) sum = mix(sum, piece);
  return spread(sum);
}

uint64_t checksum(std::span<const uint8_t> bytes, int num_threads) {
  std::vector<uint64_t> pieces((bytes.size() + kChecksumPiece - 1) / kChecksumPiece);
  for_each_unit(num_threads, pieces.size(), [&](int, size_t i) {
    const size_t start = i * kChecksumPiece;
    pieces[i] =
        checksum_piece(bytes.subspan(start, std::min(kChecksumPiece, bytes.size() - start)));
  });
  return checksum_combine(pieces, bytes.size());
}

}  // namespace headrace
