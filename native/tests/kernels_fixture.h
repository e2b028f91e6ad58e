// Random operands, packed matrices and plain double-precision answers for tests of the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cpu.h"
#include "kernels.h"

namespace headrace::testing {

// Memory at a multiple of 64 bytes, zeroed.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : bytes_(bytes), data_(new (std::align_val_t{64}) uint8_t[bytes ? bytes : 1]) {
    std::memset(data_.get(), 0, bytes);
  }
  uint8_t* data() const { return data_.get(); }
  size_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  size_t bytes_;
  std::unique_ptr<uint8_t, Free> data_;
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  float real() { return static_cast<float>(bits()) / 1073741824.f - 1.f; }  // -1 .. 1
  std::vector<float> reals(size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = real();
    return out;
  }

 private:
  uint64_t state_;
};

inline float from_bf16(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline size_t up(size_t n, size_t step) { return (n + step - 1) / step * step; }

// A wide number as the table's kernels hold it.
inline float read_wide(const Kernels& kernels, const uint8_t* row, size_t i) {
  if (kernels.wide_bytes == 2) return from_bf16(reinterpret_cast<const uint16_t*>(row)[i]);
  return reinterpret_cast<const float*>(row)[i];
}
inline void write_wide(const Kernels& kernels, uint8_t* row, size_t i, float x) {
  if (kernels.wide_bytes == 2) {
    reinterpret_cast<uint16_t*>(row)[i] = to_bf16(x);
  } else {
    reinterpret_cast<float*>(row)[i] = x;
  }
}

// A random matrix in panels, with its columns as products see them.
struct Packed {
  Packed(const Kernels& kernels, WeightKind kind, int n, int k, uint64_t seed)
      : bytes(kernels.panel_bytes(kind, k) * static_cast<size_t>((n + kPanel - 1) / kPanel)) {
    matrix.kind = kind;
    matrix.n = n;
    matrix.k = k;
    matrix.panels = bytes.data();
    matrix.panel_bytes = kernels.panel_bytes(kind, k);
    Random random(seed);
    for (int p = 0; p < matrix.num_panels(); p++) pack_panel(kernels, p, random);
    columns.resize(static_cast<size_t>(n) * static_cast<size_t>(k));
    for (int c = 0; c < n; c++) {
      kernels.read_column(matrix, c,
                          columns.data() + static_cast<size_t>(c) * static_cast<size_t>(k));
    }
  }
  float at(int c, int k) const {
    return columns[static_cast<size_t>(c) * static_cast<size_t>(matrix.k) + static_cast<size_t>(k)];
  }

  Buffer bytes;
  Matrix matrix;
  std::vector<float> columns;

 private:
  void pack_panel(const Kernels& kernels, int panel, Random& random) {
    const size_t k = static_cast<size_t>(matrix.k);
    const bool grouped = matrix.kind == WeightKind::q8 || matrix.kind == WeightKind::q4;
    const size_t scales_each = grouped ? up(k, kGroup) / kGroup : 1;
    std::vector<float> values(kPanel * k), scales(kPanel * scales_each), minimums(scales.size());
    std::vector<int8_t> quants(kPanel * k);
    for (size_t c = 0; c < kPanel; c++) {
      if (panel * kPanel + static_cast<int>(c) >= matrix.n) continue;
      for (size_t i = 0; i < k; i++) {
        values[c * k + i] = random.real();
        quants[c * k + i] = static_cast<int8_t>(
            matrix.kind == WeightKind::q4 ? random.below(16) : random.below(255) - 127);
      }
      for (size_t g = 0; g < scales_each; g++) {
        scales[c * scales_each + g] = 0.01f + 0.005f * random.real();
        minimums[c * scales_each + g] = 0.1f * random.real();
      }
    }
    const Columns in{matrix.k, values.data(), quants.data(), scales.data(), minimums.data()};
    kernels.pack(matrix.kind, in, bytes.data() + static_cast<size_t>(panel) * matrix.panel_bytes);
  }
};

// Random rows for a product of this kind, and their numbers.
struct Operands {
  Operands(const Kernels& kernels, WeightKind weights, int rows, int k, uint64_t seed)
      : kind(kernels.operand_kind(weights)),
        k(k),
        row_bytes(bytes_of_row(kernels, kind, k)),
        bytes(row_bytes *
              up(static_cast<size_t>(rows), static_cast<size_t>(kernels.first_operand_rows))),
        scales(static_cast<size_t>(rows), 1.f) {
    Random random(seed);
    for (int r = 0; r < rows; r++) {
      const std::vector<float> numbers = random.reals(static_cast<size_t>(k));
      write(kernels, r, numbers);
      for (int i = 0; i < k; i++) values.push_back(read(kernels, r, i));
    }
  }
  // Makes a row of these numbers, as a product will see them.
  void write(const Kernels& kernels, int r, const std::vector<float>& numbers) {
    uint8_t* row = bytes.data() + static_cast<size_t>(r) * row_bytes;
    if (kind != OperandKind::wide) {
      kernels.quantise(numbers.data(), k, kind, row, &scales[static_cast<size_t>(r)]);
      return;
    }
    for (size_t i = 0; i < numbers.size(); i++) write_wide(kernels, row, i, numbers[i]);
  }
  Operand operand() const { return {bytes.data(), row_bytes, scales.data()}; }
  double at(int r, int i) const {
    return values[static_cast<size_t>(r) * static_cast<size_t>(k) + static_cast<size_t>(i)];
  }

  OperandKind kind;
  int k;
  size_t row_bytes;
  Buffer bytes;
  std::vector<float> scales;
  std::vector<double> values;

 private:
  static size_t bytes_of_row(const Kernels& kernels, OperandKind kind, int k) {
    if (kind == OperandKind::int16) return Int16Row::bytes(k);
    return up(static_cast<size_t>(k), kPad) * (kind == OperandKind::int8 ? 1 : kernels.wide_bytes);
  }
  double read(const Kernels& kernels, int r, int i) const {
    const uint8_t* row = bytes.data() + static_cast<size_t>(r) * row_bytes;
    switch (kind) {
      case OperandKind::int8:
        return static_cast<int8_t>(row[i]) * static_cast<double>(scales[static_cast<size_t>(r)]);
      case OperandKind::int16: {
        const Int16Row numbers(row, k);
        return numbers.quants[i] * static_cast<double>(numbers.scales[i / kScaleChunk]);
      }
      case OperandKind::wide:
        break;
    }
    return read_wide(kernels, row, static_cast<size_t>(i));
  }
};

struct Sum {
  double value, size;  // size: of the terms, to bound the rounding
};

inline Sum exact(const Operands& a, int row, const Packed& b, int column) {
  Sum s{0, 0};
  for (int i = 0; i < a.k; i++) {
    const double term = a.at(row, i) * static_cast<double>(b.at(column, i));
    s.value += term;
    s.size += std::fabs(term);
  }
  return s;
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

constexpr WeightKind kKinds[] = {WeightKind::bf16, WeightKind::i8, WeightKind::i8a8, WeightKind::q8,
                                 WeightKind::q4};

}  // namespace headrace::testing
