// What an instruction set must be able to do. Each one is a static library that exports one table;
// everything else in this package is plain C++ that knows no instruction set.
//
// Rules that make results independent of batch, chunking, threads and block placement:
//  - a row of a product depends on its own operand row alone, summed over k in one fixed order,
//    whatever the number of rows in the call;
//  - attention sums over chunks of kChunk keys that begin at absolute positions, merged in order;
//  - no contraction by the compiler (-ffp-contract=off): a fused multiply-add is written as one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

constexpr int kPanel = 32;        // output columns packed together
constexpr int kBlock = 32;        // tokens in one KV block
constexpr int kChunk = 256;       // keys in one attention chunk
constexpr int kQueryRows = 32;    // query rows (token x head of a group) in one attention item
constexpr int kGroup = 32;        // numbers along k that share a scale in q8 and q4
constexpr int kPad = 64;          // k and head sizes are padded with zeros to a multiple of this
constexpr int kScaleChunk = 256;  // numbers along k of an int16 row that share a scale

constexpr int round_up(int value, int step) { return (value + step - 1) / step * step; }

// How a matrix is stored and multiplied. "wide" operands are bf16 or float, as the table says.
enum class WeightKind : uint8_t {
  bf16,  // wide operand
  i8,    // int8 with a scale for each column, wide or int16 operand (w8a16)
  i8a8,  // the same with an int8 operand (w8a8)
  q8,    // int8 with a scale for each group, wide or int16 operand (GGUF Q8_0)
  q4,    // 0..15 with a scale and a minimum for each group, as q8 (GGUF Q4_0, Q4_1, Q4_K)
};
// What the rows of a product's operand hold.
enum class OperandKind : uint8_t {
  wide,
  int8,   // with a scale for each row
  int16,  // with a scale for each kScaleChunk numbers, which lies in the row, see Int16Row
};
enum class Activation : uint8_t { silu, gelu_tanh };
enum class CacheKind : uint8_t { bf16, i8 };

// kPanel columns on their way into a panel; columns beyond the matrix are zero. q = quant:
// i8, i8a8: value = scale[c] * q; q8: scale[c][g] * q; q4: scale[c][g] * q + minimum[c][g].
struct Columns {
  int k;                  // numbers in a column
  const float* values;    // bf16: [kPanel][k]; the packer rounds to nearest even
  const int8_t* quants;   // the others: [kPanel][k]
  const float* scales;    // i8, i8a8: [kPanel]; q8, q4: [kPanel][ceil(k / kGroup)]
  const float* minimums;  // q4: as scales
};

struct Matrix {
  WeightKind kind = WeightKind::bf16;
  int n = 0, k = 0;  // real columns and their length; packed: round_up(n, 32), round_up(k, 64)
  const uint8_t* panels = nullptr;  // 64-byte aligned
  size_t panel_bytes = 0;           // a multiple of 64
  int num_panels() const { return (n + kPanel - 1) / kPanel; }
};

// A row of int16 numbers, times the scale of their chunk; what follows them is there once for all
// the panels that read it.
struct Int16Row {
  const int16_t* quants;  // [round_up(k, kPad)], -32767..32767
  const float* sums;      // [round_up(k, kPad) / kGroup]: of each group's quants, exact
  const float* scales;    // [ceil(k / kScaleChunk)]

  Int16Row(const uint8_t* row, int k)
      : quants(reinterpret_cast<const int16_t*>(row)),
        sums(reinterpret_cast<const float*>(quants + round_up(k, kPad))),
        scales(sums + round_up(k, kPad) / kGroup) {}

  static constexpr size_t bytes(int k) {
    const int padded = round_up(k, kPad);
    const int floats = padded / kGroup + round_up(padded, kScaleChunk) / kScaleChunk;
    return static_cast<size_t>(round_up(padded * 2 + floats * 4, 64));
  }
};

// Rows that a product reads, of the kind that the table names for the matrix. Each row holds
// round_up(k, kPad) numbers, zeros at its end, and starts at a multiple of 64 bytes.
struct Operand {
  const uint8_t* data;
  size_t row_bytes;
  const float* scales;  // int8: [rows]
};

// Rows that a kernel writes for a later product: wide, or float when they are quantised next.
struct Rows {
  uint8_t* data;
  size_t row_bytes;
  bool wide;
};

struct HeadPanel {  // one row's logits in one panel
  float max;        // NaN where a logit is
  float sum_exp;    // of exp(logit - max), only when asked for
  int32_t argmax;   // the lowest column on a tie
};

// What becomes of the 32 sums of a row and a panel, after scales and bias.
struct Epilogue {
  enum class Kind : uint8_t {
    store,  // out[row][32 * panel ...] = sums
    add,    // out[row][32 * panel ...] += sums
    glu,    // rows[row][16 * panel ...] = activation(sums 0-15) * sums 16-31
    head,   // heads[row][panel], and out[row][...] = sums where out is given
  };
  Kind kind = Kind::store;
  Activation activation = Activation::silu;
  bool want_sum_exp = false;
  const float* bias = nullptr;      // [round_up(n, 32)], in the panels' order
  float* out = nullptr;             // store, add: rows of at least round_up(n, 32) numbers;
  size_t out_stride = 0;            // head: rows of n numbers. In floats.
  Rows rows{};                      // glu
  HeadPanel* heads = nullptr;       // head: [rows][num_panels]
  const uint32_t* masks = nullptr;  // head: [rows][num_panels], bit c set: column c is allowed
};

// RMSNorm over a head where norm is given, then the rotary embedding by halves.
struct HeadTransform {
  int dim;            // real size of a head, even; width: round_up(dim, kPad)
  const float* norm;  // [dim] or null
  float eps;
  const float* cos;  // [dim / 2], this token's
  const float* sin;
};

// One layer's attention. A block of one kv head holds kBlock keys and values in the table's layout.
struct Attention {
  CacheKind cache;
  int head_dim, width;  // width: round_up(head_dim, kPad)
  int num_heads, num_kv_heads;
  int window;          // keys a token may see, itself included; 0: all
  float scale;         // multiplies q.k
  const uint8_t* kv;   // this layer's blocks
  size_t block_bytes;  // of all kv heads: num_kv_heads * head_bytes
  size_t head_bytes;
  const uint8_t* queries;  // wide [token][head][width]
  Rows out;                // [token][head * head_dim]
};

// Up to kQueryRows rows of one sequence and kv head against chunks [first_chunk, last_chunk).
// Row r is token r / group and head kv_head * group + r % group, group = num_heads / num_kv_heads.
struct AttentionItem {
  const int32_t* block_table;  // the sequence's
  int first_token;             // index in the batch of the sequence's first new token
  int num_computed;            // position of that token
  int kv_head;
  int first_row, num_rows;
  int first_chunk, last_chunk;
  float* partials;  // null: all chunks are here, write `out`; else [num_rows][width + 16]: sums,
                    // max at [width], sum of exponentials at [width + 1], of this one chunk
};

struct Kernels {
  const char* isa;         // amx, avx512, avx2, scalar
  uint32_t layout;         // names the order of panels and blocks; packed files hold it
  size_t wide_bytes;       // of one number of a wide operand: 2 or 4
  int first_operand_rows;  // operands must be readable up to a multiple of this many rows
  OperandKind (*operand_kind)(WeightKind);

  // Called by every thread at the start and end of each step.
  void (*begin)();
  void (*end)();

  size_t (*panel_bytes)(WeightKind, int k);
  void (*pack)(WeightKind, const Columns&, uint8_t* panel);
  void (*read_column)(const Matrix&, int column, float* out);  // k numbers, as products see them

  // Rows [begin, end) of one panel. `next`: the panel that this thread takes next, or null.
  void (*product)(const Matrix&, int panel, const Operand&, int begin, int end, const Epilogue&,
                  const uint8_t* next, uint8_t* scratch);

  // out = weight * x / rms(x); k real numbers, padding is zeroed. *scale is written for int8 alone.
  void (*norm)(const float* x, const float* weight, int k, float eps, OperandKind, void* out,
               float* scale);
  // x += weight * y / rms(y)
  void (*add_norm)(float* x, const float* y, const float* weight, int k, float eps);
  // To int8 or int16.
  void (*quantise)(const float* x, int k, OperandKind, void* out, float* scale);

  void (*rotate_query)(const float* q, const HeadTransform&, void* out);  // wide [width]
  size_t (*head_bytes)(CacheKind, int width);  // keys and values of one block and kv head
  void (*store_key)(const float* k, const HeadTransform&, CacheKind, int slot, uint8_t* head);
  void (*store_value)(const float* v, int dim, CacheKind, int slot, uint8_t* head);
  void (*attend)(const Attention&, const AttentionItem&, const AttentionItem* next,
                 uint8_t* scratch);
  // One row of a sequence whose chunks were computed apart: `count` partials, `stride` floats
  // apart.
  void (*merge)(const Attention&, int token, int head, const float* partials, size_t stride,
                int count);
  size_t (*scratch_bytes)(int max_k, int width);  // a thread's, 64-byte aligned

  // out[i] = exp((x[i] - most) * scale), at most 1, 0 for a NaN; returns their sum. scale > 0.
  float (*exponentials)(const float* x, int n, float most, float scale, float* out);
};

// Null where the level is not built in. The caller has checked that the machine has it.
const Kernels* amx_kernels();
const Kernels* avx512_kernels();
const Kernels* avx2_kernels();
const Kernels* scalar_kernels();

}  // namespace headrace
