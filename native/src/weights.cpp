#include "weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "layout.h"
#include "mapping.h"
#include "pack.h"

namespace headrace {
namespace {

void check_threads(int num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("num_threads: needs 1 to 1024");
  }
}

// A file beside `path` that becomes it when it is whole, and goes when it never is.
class NewFile {
 public:
  NewFile(const std::string& path, size_t num_bytes)
      : path_(path), temporary_(path + ".XXXXXX"), file_(create(temporary_)) {
    // Room is taken now: a full disk is an error here, not a signal when a page is written.
    if (const int error = posix_fallocate(file_.descriptor(), 0, static_cast<off_t>(num_bytes))) {
      unlink(temporary_.c_str());
      errno = error;
      throw_errno("make room for", path_);
    }
  }
  ~NewFile() {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const File& file() const { return file_; }

  void publish() {
    if (fsync(file_.descriptor()) != 0) throw_errno("write", path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) throw_errno("write", path_);
    temporary_.clear();
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    // The name lasts once its folder is written; a system that cannot do so loses no more than it.
    const File directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY));
    if (directory.descriptor() >= 0) fsync(directory.descriptor());
  }

 private:
  static int create(std::string& pattern) {
    const int descriptor = mkostemp(pattern.data(), O_CLOEXEC);
    if (descriptor < 0) throw_errno("create", pattern);
    return descriptor;
  }
  std::string path_, temporary_;
  File file_;
};

// The whole of a regular file, or nothing.
std::optional<Mapping> map_file(const std::string& path) {
  // A pipe under that name would wait for a writer without O_NONBLOCK.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw_errno("open", path);
  }
  struct stat status;
  if (fstat(file.descriptor(), &status) != 0) throw_errno("read", path);
  if (!S_ISREG(status.st_mode) || status.st_size == 0) return std::nullopt;
  return Mapping::of_file(file, static_cast<size_t>(status.st_size), false, path);
}

// Brings the pages in at once, which is faster than a fault for each. Only a hint.
void populate([[maybe_unused]] std::span<uint8_t> bytes) {
#ifdef MADV_POPULATE_READ
  madvise(bytes.data(), bytes.size(), MADV_POPULATE_READ);
#endif
}

}  // namespace

struct Weights::State {
  explicit State(const Kernels& kernels_, int num_threads_)
      : kernels(&kernels_), num_threads(num_threads_) {}

  const Kernels* kernels;
  int num_threads;
  Layout layout;
  std::vector<Entry> entries;
  std::map<std::string, const Placed*> by_name;
  Mapping memory;
  std::atomic<bool> finished = false;  // read by threads that do not hold `writing`

  // Until it is finished.
  std::mutex writing;
  std::map<std::string, bool> put;
  std::unique_ptr<NewFile> file;  // null: in memory alone
  std::string path;

  void index() {
    for (const Placed& placed : layout.entries) {
      entries.push_back(placed.entry);
      by_name[placed.entry.name] = &placed;
    }
  }

  std::span<uint8_t> bytes_of(const Placed& placed) const {
    return memory.bytes().subspan(placed.offset, placed.num_bytes);
  }

  const Placed& find(const std::string& name) const {
    const auto found = by_name.find(name);
    if (found == by_name.end()) throw std::invalid_argument("weights: there is no '" + name + "'");
    return *found->second;
  }

  const Placed& find(const std::string& name, Entry::Kind kind, const char* what) const {
    const Placed& placed = find(name);
    if (!finished) throw std::invalid_argument("weights: not finished");
    if (placed.entry.kind != kind) {
      throw std::invalid_argument("weights: '" + name + "' is not a " + what);
    }
    return placed;
  }
};

Weights::Weights() = default;
Weights::~Weights() = default;

std::shared_ptr<Weights> Weights::create(const std::string& path, const std::string& tag,
                                         const Kernels& kernels, std::vector<Entry> entries,
                                         int num_threads) {
  check_threads(num_threads);
  std::shared_ptr<Weights> weights(new Weights());
  weights->state_ = std::make_unique<State>(kernels, num_threads);
  State& state = *weights->state_;
  state.layout = lay_out(entries, tag, kernels);
  state.path = path;
  state.index();
  if (path.empty()) {
    state.memory = Mapping::anonymous(state.layout.file_bytes);
  } else {
    state.file = std::make_unique<NewFile>(path, state.layout.file_bytes);
    state.memory = Mapping::of_file(state.file->file(), state.layout.file_bytes, true, path);
  }
  write_head(state.layout, tag, kernels, state.memory.bytes());
  return weights;
}

std::shared_ptr<Weights> Weights::open(const std::string& path, const std::string& tag,
                                       const Kernels& kernels, int num_threads) {
  check_threads(num_threads);
  std::optional<Mapping> memory = map_file(path);
  if (!memory) return nullptr;
  std::optional<Layout> layout = read_head(memory->bytes(), tag, kernels);
  if (!layout) return nullptr;
  populate(memory->bytes());
  if (!is_sealed(memory->bytes(), num_threads)) return nullptr;
  std::shared_ptr<Weights> weights(new Weights());
  weights->state_ = std::make_unique<State>(kernels, num_threads);
  State& state = *weights->state_;
  state.layout = *std::move(layout);
  state.memory = *std::move(memory);
  state.finished = true;
  state.index();
  return weights;
}

void Weights::put(const std::string& name, const std::vector<Stored>& parts, bool interleaved) {
  const std::lock_guard lock(state_->writing);
  if (state_->finished) throw std::invalid_argument("weights: finished, nothing more can be put");
  const Placed& placed = state_->find(name);
  if (state_->put[name]) throw std::invalid_argument("weights: '" + name + "' is put already");
  pack(placed, parts, interleaved, *state_->kernels, state_->num_threads, state_->bytes_of(placed));
  state_->put[name] = true;
}

void Weights::finish() {
  const std::lock_guard lock(state_->writing);
  if (state_->finished) throw std::invalid_argument("weights: finished already");
  for (const Entry& entry : state_->entries) {
    if (!state_->put[entry.name]) {
      throw std::invalid_argument("weights: '" + entry.name + "' was not put");
    }
  }
  if (state_->file) {
    seal(state_->memory.bytes(), state_->num_threads);
    state_->file->publish();
    // From here on nothing can write to it.
    state_->memory =
        Mapping::of_file(state_->file->file(), state_->layout.file_bytes, false, state_->path);
    populate(state_->memory.bytes());
    state_->file.reset();
  }
  state_->finished = true;
}

const std::vector<Entry>& Weights::entries() const { return state_->entries; }

bool Weights::has(const std::string& name) const { return state_->by_name.contains(name); }

Matrix Weights::matrix(const std::string& name) const {
  const Placed& placed = state_->find(name, Entry::Kind::matrix, "matrix");
  return {placed.entry.weight, placed.entry.n, placed.entry.k, state_->bytes_of(placed).data(),
          placed.unit_bytes};
}

std::span<const float> Weights::vector(const std::string& name) const {
  const Placed& placed = state_->find(name, Entry::Kind::vector, "vector");
  return {reinterpret_cast<const float*>(state_->bytes_of(placed).data()),
          static_cast<size_t>(placed.entry.k)};
}

std::span<const uint16_t> Weights::table(const std::string& name) const {
  const Placed& placed = state_->find(name, Entry::Kind::table, "table");
  return {reinterpret_cast<const uint16_t*>(state_->bytes_of(placed).data()),
          placed.num_bytes / sizeof(uint16_t)};
}

size_t Weights::num_bytes() const { return state_->layout.file_bytes; }
const Kernels& Weights::kernels() const { return *state_->kernels; }

}  // namespace headrace
