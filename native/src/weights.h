// A file of packed weights, written once and then mapped into memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels.h"

namespace headrace {

// Rows as a checkpoint stores them: F32, F16, BF16 or a GGUF type; row-major, rows of k numbers.
struct Stored {
  std::string format;
  int num_rows;
  std::span<const uint8_t> bytes;
};

struct Entry {
  std::string name;
  enum class Kind : uint8_t { matrix, vector, table } kind;  // vector: float; table: bf16 rows
  WeightKind weight;                                         // matrix
  int n, k;                                                  // vector: k numbers, n = 1
};

class Weights {
 public:
  // A new file of these entries, in the order that a step reads them, all to be put before it is
  // finished. std::invalid_argument, or std::system_error when there is no room. `tag` names the
  // content (source digest, mode); the layout comes from the kernels. Written beside `path` and
  // renamed by finish(): a file under that name is whole. With an empty path it stays in memory
  // alone.
  static std::shared_ptr<Weights> create(const std::string& path, const std::string& tag,
                                         const Kernels&, std::vector<Entry>, int num_threads);
  // Null when there is none, or it is another format, layout or tag, or its checksum is wrong.
  static std::shared_ptr<Weights> open(const std::string& path, const std::string& tag,
                                       const Kernels&, int num_threads);
  ~Weights();

  // Rows of the parts follow one another; interleaved: two parts, 16 rows of each in turn (GLU).
  // Quantises where the entry asks for it; q4 and q8 need parts in a format that has such groups.
  // std::invalid_argument naming the entry, which stays to be put, for parts that do not fit it and
  // for numbers that are not finite. A vector's part is one row of numbers, or rows of one.
  void put(const std::string& name, const std::vector<Stored>& parts, bool interleaved);
  // std::invalid_argument when an entry is missing, std::system_error when it cannot be written.
  void finish();

  // What follows is for finished weights. Vectors are zero up to a multiple of kPad numbers.
  const std::vector<Entry>& entries() const;
  bool has(const std::string& name) const;
  Matrix matrix(const std::string& name) const;  // std::invalid_argument when it is not one
  std::span<const float> vector(const std::string& name) const;
  std::span<const uint16_t> table(const std::string& name) const;
  size_t num_bytes() const;
  const Kernels& kernels() const;

 private:
  Weights();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
