#include "layout.h"

#include <bit>
#include <cstring>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "checksum.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "packed files are little-endian");

constexpr char kMagic[8] = {'H', 'E', 'A', 'D', 'R', 'A', 'C', 'E'};
constexpr uint32_t kVersion = 1;
constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
constexpr int kMaxSide = 1 << 24;   // of a matrix; products of two sides fit 64 bits easily
constexpr int kMaxInt8K = 1 << 17;  // 127 * 127 of each fits an int32 sum
constexpr size_t kMaxEntries = 1 << 16;
constexpr size_t kMaxFile = size_t{1} << 46;
constexpr size_t kMaxText = 4096;  // of a name or the tag

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t layout;
  uint64_t file_bytes;
  uint64_t head_bytes;
  uint32_t num_entries;
  uint32_t tag_bytes;
  uint64_t reserved[2];
  uint64_t checksum;  // of the whole file with this as zero
};
static_assert(sizeof(Header) == kLine);

struct Record {
  uint8_t kind, weight;
  uint16_t name_bytes;
  int32_t n, k;
  uint32_t reserved;
  uint64_t offset, num_bytes;
};
static_assert(sizeof(Record) == 32);
static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<Record>);

constexpr size_t align(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Why an entry cannot be, or null.
const char* what_is_wrong(const Entry& entry) {
  if (entry.name.empty() || entry.name.size() > kMaxText) return "needs a name of 1 to 4096 bytes";
  if (entry.k < 1 || entry.k > kMaxSide) return "k is not in 1 to 2^24";
  if (entry.n < 1 || entry.n > kMaxSide) return "n is not in 1 to 2^24";
  if (entry.kind == Entry::Kind::matrix && entry.weight == WeightKind::i8a8 &&
      entry.k > kMaxInt8K) {
    return "k is above 131072, more than an int8 product's sums hold";
  }
  if (entry.kind == Entry::Kind::vector && entry.n != 1) return "a vector's n is 1";
  return nullptr;
}

// Sizes; the offset is the caller's.
Placed measure(const Entry& entry, const Kernels& kernels) {
  Placed placed{entry, 0, 0, 0, 1};
  const size_t k = static_cast<size_t>(entry.k), n = static_cast<size_t>(entry.n);
  switch (entry.kind) {
    case Entry::Kind::matrix:
      placed.unit_bytes = kernels.panel_bytes(entry.weight, entry.k);
      placed.num_units = (n + kPanel - 1) / kPanel;
      break;
    case Entry::Kind::vector:  // with zeros up to a multiple of kPad, for readers of whole lines
      placed.unit_bytes = align(k, kPad) * sizeof(float);
      break;
    case Entry::Kind::table:
      placed.unit_bytes = k * sizeof(uint16_t);
      placed.num_units = n;
      break;
  }
  placed.num_bytes = placed.unit_bytes * placed.num_units;
  return placed;
}

size_t place(Placed& placed, size_t end) {
  placed.offset = align(end, placed.entry.kind == Entry::Kind::vector ? kLine : kPage);
  return placed.offset + placed.num_bytes;
}

// Takes values off the front of a span; once one does not fit, `failed` stays set.
struct Reader {
  std::span<const uint8_t> left;
  bool failed = false;

  template <class T>
  T take() {
    T value{};
    if (left.size() < sizeof value) {
      failed = true;
      return value;
    }
    std::memcpy(&value, left.data(), sizeof value);
    left = left.subspan(sizeof value);
    return value;
  }
  std::string text(size_t size) {
    if (left.size() < size) {
      failed = true;
      return {};
    }
    std::string value(reinterpret_cast<const char*>(left.data()), size);
    left = left.subspan(size);
    return value;
  }
};

struct Writer {
  uint8_t* at;

  void put(const void* data, size_t size) {
    std::memcpy(at, data, size);
    at += size;
  }
};

// The record's entry where it lies as lay_out would place it after `end`, which it moves on.
std::optional<Placed> read_entry(Reader& reader, const Kernels& kernels, size_t file_bytes,
                                 size_t& end) {
  const Record record = reader.take<Record>();
  Entry entry;
  entry.name = reader.text(record.name_bytes);
  if (reader.failed || record.kind > static_cast<uint8_t>(Entry::Kind::table) ||
      record.weight > static_cast<uint8_t>(WeightKind::q4)) {
    return std::nullopt;
  }
  entry.kind = static_cast<Entry::Kind>(record.kind);
  entry.weight = static_cast<WeightKind>(record.weight);
  entry.n = record.n;
  entry.k = record.k;
  if (what_is_wrong(entry) != nullptr) return std::nullopt;
  Placed placed = measure(entry, kernels);
  end = place(placed, end);
  if (end > file_bytes || placed.offset != record.offset || placed.num_bytes != record.num_bytes)
    return std::nullopt;
  return placed;
}

uint64_t sum(std::span<const uint8_t> file, int num_threads) {
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  header.checksum = 0;
  uint8_t head[sizeof header];
  std::memcpy(head, &header, sizeof header);
  const uint64_t parts[] = {checksum_piece(head),
                            checksum(file.subspan(sizeof header), num_threads)};
  return checksum_combine(parts, file.size());
}

}  // namespace

Layout lay_out(const std::vector<Entry>& entries, const std::string& tag, const Kernels& kernels) {
  if (entries.empty() || entries.size() > kMaxEntries) {
    throw std::invalid_argument("entries: needs 1 to 65536");
  }
  if (tag.size() > kMaxText) throw std::invalid_argument("tag: longer than 4096 bytes");
  Layout layout;
  layout.head_bytes = sizeof(Header) + tag.size();
  std::set<std::string> names;
  for (const Entry& entry : entries) {
    if (const char* wrong = what_is_wrong(entry)) {
      throw std::invalid_argument("entries: '" + entry.name.substr(0, kMaxText) + "': " + wrong);
    }
    if (!names.insert(entry.name).second) {
      throw std::invalid_argument("entries: '" + entry.name + "' is there twice");
    }
    layout.head_bytes += sizeof(Record) + entry.name.size();
  }
  layout.file_bytes = layout.head_bytes;
  for (const Entry& entry : entries) {
    layout.entries.push_back(measure(entry, kernels));
    layout.file_bytes = place(layout.entries.back(), layout.file_bytes);
    if (layout.file_bytes > kMaxFile) throw std::invalid_argument("entries: more than 64 TiB");
  }
  return layout;
}

void write_head(const Layout& layout, const std::string& tag, const Kernels& kernels,
                std::span<uint8_t> file) {
  Writer writer{file.data()};
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.layout = kernels.layout;
  header.file_bytes = layout.file_bytes;
  header.head_bytes = layout.head_bytes;
  header.num_entries = static_cast<uint32_t>(layout.entries.size());
  header.tag_bytes = static_cast<uint32_t>(tag.size());
  writer.put(&header, sizeof header);
  writer.put(tag.data(), tag.size());
  for (const Placed& placed : layout.entries) {
    const Entry& entry = placed.entry;
    const Record record{static_cast<uint8_t>(entry.kind),
                        static_cast<uint8_t>(entry.weight),
                        static_cast<uint16_t>(entry.name.size()),
                        entry.n,
                        entry.k,
                        0,
                        placed.offset,
                        placed.num_bytes};
    writer.put(&record, sizeof record);
    writer.put(entry.name.data(), entry.name.size());
  }
}

void seal(std::span<uint8_t> file, int num_threads) {
  const uint64_t value = sum(file, num_threads);
  std::memcpy(file.data() + offsetof(Header, checksum), &value, sizeof value);
}

bool is_sealed(std::span<const uint8_t> file, int num_threads) {
  uint64_t value;
  std::memcpy(&value, file.data() + offsetof(Header, checksum), sizeof value);
  return value == sum(file, num_threads);
}

std::optional<Layout> read_head(std::span<const uint8_t> file, const std::string& tag,
                                const Kernels& kernels) {
  Reader reader{file};
  const Header header = reader.take<Header>();
  if (reader.failed || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
      header.version != kVersion || header.layout != kernels.layout ||
      header.file_bytes != file.size() || header.tag_bytes != tag.size() ||
      header.num_entries < 1 || header.num_entries > kMaxEntries ||
      header.head_bytes > file.size() || reader.text(header.tag_bytes) != tag) {
    return std::nullopt;
  }
  Layout layout{{}, header.head_bytes, header.head_bytes};
  std::set<std::string> names;
  for (uint32_t i = 0; i < header.num_entries; i++) {
    std::optional<Placed> placed = read_entry(reader, kernels, file.size(), layout.file_bytes);
    if (!placed || !names.insert(placed->entry.name).second) return std::nullopt;
    layout.entries.push_back(*std::move(placed));
  }
  // The last entry ends the file, and records fill the head: nothing lies outside.
  if (layout.file_bytes != file.size() ||
      reader.left.data() - file.data() != static_cast<ptrdiff_t>(header.head_bytes)) {
    return std::nullopt;
  }
  return layout;
}

}  // namespace headrace
