// Buffers that are laid out first and then cut from one mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "mapping.h"

namespace headrace {

// std::invalid_argument naming `what` when the product of the factors is no size.
inline size_t checked_bytes(const char* what, std::initializer_list<size_t> factors) {
  size_t bytes = 1;
  for (const size_t factor : factors) {
    if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > SIZE_MAX / 4) {
      throw std::invalid_argument(std::string(what) + ": needs more memory than there can be");
    }
  }
  return bytes;
}

class Arena {
 public:
  // *where is set by allocate(), to zeros at a multiple of 64 bytes. `where` must live until then.
  template <class T>
  void place(T*& where, const char* what, std::initializer_list<size_t> factors) {
    const size_t bytes = checked_bytes(what, {checked_bytes(what, factors), sizeof(T)});
    const size_t offset = size_;
    if (__builtin_add_overflow(size_, (bytes + 63) / 64 * 64, &size_)) {
      throw std::invalid_argument(std::string(what) + ": needs more memory than there can be");
    }
    pending_.push_back({reinterpret_cast<void*>(&where), offset, [](void* to, uint8_t* bytes_at) {
                          *static_cast<T**>(to) = reinterpret_cast<T*>(bytes_at);
                        }});
  }

  void allocate() {
    if (size_) memory_ = Mapping::anonymous(size_);
    for (const Pending& p : pending_) p.set(p.where, memory_.bytes().data() + p.offset);
    pending_.clear();
  }

 private:
  struct Pending {
    void* where;
    size_t offset;
    void (*set)(void*, uint8_t*);
  };
  std::vector<Pending> pending_;
  size_t size_ = 0;
  Mapping memory_;
};

}  // namespace headrace
