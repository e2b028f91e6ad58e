// Memory of its own: from a file, or anonymous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace headrace {

// A descriptor that is closed when its owner goes.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File();
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Pages that are given back when their owner goes. Begins at a multiple of 4 KiB.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }

  // Zeros in huge pages where the system has them. std::bad_alloc when there is no room.
  static Mapping anonymous(size_t num_bytes);
  // A file's bytes, shared with every process that maps it. std::system_error naming `path`.
  static Mapping of_file(const File& file, size_t num_bytes, bool writable,
                         const std::string& path);

  std::span<uint8_t> bytes() const { return bytes_; }

 private:
  void swap(Mapping& other) noexcept {
    std::swap(whole_, other.whole_);
    std::swap(bytes_, other.bytes_);
  }
  std::span<uint8_t> whole_;  // with what aligning to huge pages takes
  std::span<uint8_t> bytes_;
};

// std::system_error from errno: "cannot <what> <path>".
[[noreturn]] void throw_errno(const std::string& what, const std::string& path);

}  // namespace headrace
