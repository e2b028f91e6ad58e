#include "mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace headrace {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

uint8_t* map(size_t num_bytes, int protection, int flags, int descriptor) {
  void* at = mmap(nullptr, num_bytes, protection, flags, descriptor, 0);
  return at == MAP_FAILED ? nullptr : static_cast<uint8_t*>(at);
}

}  // namespace

void throw_errno(const std::string& what, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), "cannot " + what + " " + path);
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

Mapping::~Mapping() {
  if (!whole_.empty()) munmap(whole_.data(), whole_.size());
}

Mapping Mapping::anonymous(size_t num_bytes) {
  const size_t size = num_bytes + kHugePage;
  uint8_t* at = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (at == nullptr) throw std::bad_alloc();
  Mapping mapping;
  mapping.whole_ = {at, size};
  const size_t past = reinterpret_cast<uintptr_t>(at) % kHugePage;
  mapping.bytes_ = {at + (past == 0 ? 0 : kHugePage - past), num_bytes};
#ifdef MADV_HUGEPAGE
  // Only a hint: without huge pages everything works, with more misses of the TLB.
  madvise(mapping.bytes_.data(), num_bytes, MADV_HUGEPAGE);
#endif
  return mapping;
}

Mapping Mapping::of_file(const File& file, size_t num_bytes, bool writable,
                         const std::string& path) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  uint8_t* at = map(num_bytes, protection, MAP_SHARED, file.descriptor());
  if (at == nullptr) throw_errno("map", path);
  Mapping mapping;
  mapping.whole_ = mapping.bytes_ = {at, num_bytes};
  return mapping;
}

}  // namespace headrace
