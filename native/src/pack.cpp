#include "pack.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "parallel.h"
#include "stored.h"

namespace headrace {
namespace {

constexpr int kHalf = kPanel / 2;  // rows that interleaved parts take in turn
constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinite = 0x7f800000;
constexpr uint32_t kBf16Overflow = 0x7f7f8000;  // the first magnitude that bf16 rounds to infinity

[[noreturn]] void refuse(const Entry& entry, const std::string& why) {
  throw std::invalid_argument("'" + entry.name + "' " + why);
}

// One part with its format found: rows that can be addressed.
struct Part {
  const StoredFormat* format;
  const uint8_t* bytes;
  int num_rows;
  size_t row_bytes;
  const uint8_t* row(int i) const { return bytes + static_cast<size_t>(i) * row_bytes; }
};

const StoredFormat& format_of(const Entry& entry, const Stored& stored) {
  const StoredFormat* format = find_format(stored.format);
  if (format == nullptr) {
    refuse(entry, "is stored as '" + stored.format + "', which is not one of " +
                      std::string(format_names()));
  }
  return *format;
}

Part part_of(const Entry& entry, const Stored& stored) {
  const StoredFormat& format = format_of(entry, stored);
  if (entry.k % format.block_length != 0) {
    refuse(entry, "has rows of " + std::to_string(entry.k) + " numbers, and " + stored.format +
                      " stores blocks of " + std::to_string(format.block_length));
  }
  const size_t row_bytes = static_cast<size_t>(entry.k / format.block_length) * format.block_bytes;
  if (stored.num_rows < 1 ||
      stored.bytes.size() / row_bytes != static_cast<size_t>(stored.num_rows) ||
      stored.bytes.size() % row_bytes != 0) {
    refuse(entry, "has a part of " + std::to_string(stored.bytes.size()) + " bytes, and " +
                      std::to_string(stored.num_rows) + " rows of " + std::to_string(row_bytes) +
                      " bytes were to come");
  }
  return {&format, stored.bytes.data(), stored.num_rows, row_bytes};
}

std::vector<Part> parts_of(const Entry& entry, const std::vector<Stored>& parts) {
  std::vector<Part> found;
  int64_t rows = 0;
  for (const Stored& stored : parts) {
    found.push_back(part_of(entry, stored));
    rows += stored.num_rows;
  }
  if (rows != entry.n) {
    refuse(entry, "has " + std::to_string(entry.n) + " rows, not " + std::to_string(rows));
  }
  return found;
}

// The stored row of a packed column, or null in the padding.
class PackedRows {
 public:
  struct Row {
    const StoredFormat* format = nullptr;
    const uint8_t* bytes = nullptr;
  };
  PackedRows(std::vector<Part> parts, bool interleaved)
      : parts_(std::move(parts)), interleaved_(interleaved) {}

  Row at(int column) const {
    if (interleaved_) {
      const int row = column / kPanel * kHalf + column % kHalf;
      return of(parts_[static_cast<size_t>(column % kPanel / kHalf)], row);
    }
    for (const Part& part : parts_) {
      if (column < part.num_rows) return of(part, column);
      column -= part.num_rows;
    }
    return {};
  }

 private:
  static Row of(const Part& part, int row) {
    if (row >= part.num_rows) return {};
    return {part.format, part.row(row)};
  }
  std::vector<Part> parts_;
  bool interleaved_;
};

uint32_t largest_magnitude(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; i++) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// To the nearest integer, ties to even, for |value| < 2^22: the sum has no room for a fraction.
int32_t round_to_int(float value) {
  constexpr float kShift = 0x1.8p23f;
  return std::bit_cast<int32_t>(value + kShift) - std::bit_cast<int32_t>(kShift);
}

// scale = absmax / 127; a column so small that this is zero becomes zero.
float quantise(const float* values, size_t count, float absmax, int8_t* quants) {
  const float scale = absmax / 127;
  if (scale == 0) {
    std::memset(quants, 0, count);
    return 0;
  }
  for (size_t i = 0; i < count; i++) {
    const float ratio = values[i] / scale;
    const float bounded = ratio > 127 ? 127 : ratio < -127 ? -127 : ratio;
    quants[i] = static_cast<int8_t>(round_to_int(bounded));
  }
  return scale;
}

// Packs panels, one thread's buffers at a time.
class PanelPacker {
 public:
  PanelPacker(const Entry& entry, const Kernels& kernels) : entry_(entry), kernels_(kernels) {
    const size_t k = static_cast<size_t>(entry.k);
    const size_t groups = (k + kGroup - 1) / kGroup;
    values_.resize(grouped() ? 0 : kPanel * k);
    quants_.resize(entry.weight == WeightKind::bf16 ? 0 : kPanel * k);
    scales_.resize(kPanel * (grouped() ? groups : 1));
    minimums_.resize(entry.weight == WeightKind::q4 ? kPanel * groups : 0);
  }

  // False when a number is not finite.
  bool pack(const PackedRows& rows, int panel, uint8_t* out) {
    for (int c = 0; c < kPanel; c++) {
      const PackedRows::Row row = rows.at(panel * kPanel + c);
      if (row.bytes == nullptr) {
        clear(static_cast<size_t>(c));
      } else if (!(grouped() ? copy_groups(static_cast<size_t>(c), row)
                             : read_column(static_cast<size_t>(c), row))) {
        return false;
      }
    }
    kernels_.pack(entry_.weight,
                  {entry_.k, values_.data(), quants_.data(), scales_.data(), minimums_.data()},
                  out);
    return true;
  }

 private:
  bool grouped() const {
    return entry_.weight == WeightKind::q8 || entry_.weight == WeightKind::q4;
  }
  size_t k() const { return static_cast<size_t>(entry_.k); }
  size_t num_groups() const { return scales_.size() / kPanel; }

  template <class T>
  static void clear_column(std::vector<T>& numbers, size_t column) {
    const size_t length = numbers.size() / kPanel;
    if (length > 0) std::memset(&numbers[column * length], 0, length * sizeof(T));
  }
  void clear(size_t column) {
    clear_column(values_, column);
    clear_column(quants_, column);
    clear_column(scales_, column);
    clear_column(minimums_, column);
  }

  bool read_column(size_t column, const PackedRows::Row& row) {
    float* values = &values_[column * k()];
    expand(*row.format, row.bytes, k(), values);
    const uint32_t largest = largest_magnitude(values, k());
    if (entry_.weight == WeightKind::bf16) return largest < kBf16Overflow;
    if (largest >= kInfinite) return false;
    scales_[column] = quantise(values, k(), std::bit_cast<float>(largest), &quants_[column * k()]);
    return true;
  }

  bool copy_groups(size_t column, const PackedRows::Row& row) {
    const int per_block = row.format->block_length / kGroup;
    const uint8_t* block = row.bytes;
    const size_t first = column * num_groups();
    for (size_t group = 0; group < num_groups(); block += row.format->block_bytes) {
      for (int i = 0; i < per_block; i++, group++) {
        float scale, minimum;
        row.format->read_group(block, i, &quants_[column * k() + group * kGroup], &scale, &minimum);
        const float both[] = {scale, minimum};
        if (largest_magnitude(both, 2) >= kInfinite) return false;
        scales_[first + group] = scale;
        if (!minimums_.empty()) minimums_[first + group] = minimum;
      }
    }
    return true;
  }

  const Entry& entry_;
  const Kernels& kernels_;
  std::vector<float> values_, scales_, minimums_;
  std::vector<int8_t> quants_;
};

void check_groups(const Entry& entry, const std::vector<Part>& parts) {
  if (entry.weight != WeightKind::q8 && entry.weight != WeightKind::q4) return;
  const bool wants_minimum = entry.weight == WeightKind::q4;
  for (const Part& part : parts) {
    if (part.format->read_group == nullptr || part.format->has_minimum != wants_minimum) {
      refuse(entry, "is " +
                        std::string(wants_minimum ? "q4, which takes Q4_0, Q4_1 or Q4_K"
                                                  : "q8, which takes Q8_0") +
                        ", not " + std::string(part.format->name));
    }
  }
}

void check_interleaved(const Entry& entry, const std::vector<Part>& parts) {
  if (parts.size() != 2 || parts[0].num_rows != parts[1].num_rows) {
    refuse(entry, "interleaves two parts with as many rows each");
  }
}

constexpr const char* kNotFinite = "holds a number that is not finite, or too large for bf16";

void pack_matrix(const Placed& placed, const std::vector<Stored>& stored, bool interleaved,
                 const Kernels& kernels, int num_threads, uint8_t* out) {
  const Entry& entry = placed.entry;
  std::vector<Part> parts = parts_of(entry, stored);
  check_groups(entry, parts);
  if (interleaved) check_interleaved(entry, parts);
  const PackedRows rows(std::move(parts), interleaved);
  // Buffers are made here, so that no thread can run out of memory.
  std::vector<PanelPacker> packers;
  const size_t wanted = std::min(static_cast<size_t>(num_threads), placed.num_units);
  for (size_t t = 0; t < wanted; t++) packers.emplace_back(entry, kernels);
  std::atomic<bool> finite{true};
  for_each_unit(num_threads, placed.num_units, [&](int thread, size_t panel) {
    if (!finite.load(std::memory_order_relaxed)) return;
    if (!packers[static_cast<size_t>(thread)].pack(rows, static_cast<int>(panel),
                                                   out + panel * placed.unit_bytes)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!finite.load()) refuse(entry, kNotFinite);
}

void pack_table(const Placed& placed, const std::vector<Stored>& stored, int num_threads,
                uint8_t* out) {
  const Entry& entry = placed.entry;
  const size_t k = static_cast<size_t>(entry.k);
  const PackedRows rows(parts_of(entry, stored), false);
  constexpr size_t kRun = 64;  // rows in a unit
  std::vector<std::vector<float>> buffers(static_cast<size_t>(num_threads));
  for (auto& buffer : buffers) buffer.resize(k);
  std::atomic<bool> finite{true};
  const size_t num_runs = (placed.num_units + kRun - 1) / kRun;
  for_each_unit(num_threads, num_runs, [&](int thread, size_t run) {
    float* values = buffers[static_cast<size_t>(thread)].data();
    const size_t end = std::min((run + 1) * kRun, placed.num_units);
    for (size_t row = run * kRun; row < end; row++) {
      const PackedRows::Row from = rows.at(static_cast<int>(row));
      expand(*from.format, from.bytes, k, values);
      if (largest_magnitude(values, k) >= kBf16Overflow) finite.store(false);
      auto* to = reinterpret_cast<uint16_t*>(out + row * placed.unit_bytes);
      for (size_t i = 0; i < k; i++) to[i] = float_to_bf16(values[i]);
    }
  });
  if (!finite.load()) refuse(entry, kNotFinite);
}

// The numbers of a part of a vector, whose rows are one, or as many as the numbers.
std::vector<float> read_vector(const Entry& entry, const Stored& stored) {
  const StoredFormat& format = format_of(entry, stored);
  const size_t blocks = stored.bytes.size() / format.block_bytes;
  const size_t count = blocks * static_cast<size_t>(format.block_length);
  if (stored.bytes.size() % format.block_bytes != 0 || count == 0 ||
      (stored.num_rows != 1 && static_cast<size_t>(stored.num_rows) != count)) {
    refuse(entry, "has a part of " + std::to_string(stored.bytes.size()) +
                      " bytes, which are not " + std::to_string(stored.num_rows) + " rows of " +
                      stored.format);
  }
  std::vector<float> values(count);
  expand(format, stored.bytes.data(), count, values.data());
  if (largest_magnitude(values.data(), count) >= kInfinite) refuse(entry, kNotFinite);
  return values;
}

void pack_vector(const Placed& placed, const std::vector<Stored>& stored, uint8_t* out) {
  const Entry& entry = placed.entry;
  std::vector<float> values;
  for (const Stored& part : stored) {
    const std::vector<float> more = read_vector(entry, part);
    values.insert(values.end(), more.begin(), more.end());
  }
  if (values.size() != static_cast<size_t>(entry.k)) {
    refuse(entry,
           "has " + std::to_string(entry.k) + " numbers, not " + std::to_string(values.size()));
  }
  std::memcpy(out, values.data(), values.size() * sizeof(float));
}

}  // namespace

void pack(const Placed& placed, const std::vector<Stored>& parts, bool interleaved,
          const Kernels& kernels, int num_threads, std::span<uint8_t> out) {
  if (interleaved && placed.entry.kind != Entry::Kind::matrix) {
    refuse(placed.entry, "is no matrix, and only those are interleaved");
  }
  switch (placed.entry.kind) {
    case Entry::Kind::matrix:
      pack_matrix(placed, parts, interleaved, kernels, num_threads, out.data());
      break;
    case Entry::Kind::table:
      pack_table(placed, parts, num_threads, out.data());
      break;
    case Entry::Kind::vector:
      pack_vector(placed, parts, out.data());
      break;
  }
}

}  // namespace headrace
