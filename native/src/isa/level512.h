// What a table needs of a level whose Machine multiplies bf16 and int8 panels: packing, products
// over all rows, and the cache, whose blocks are such panels too.
#pragma once

#include "panels.h"
#include "table.h"

namespace headrace {
namespace {

constexpr int kTallRows = 256;  // rows whose sums are kept while a piece of the panel stays in L1
constexpr int kTallSteps = 16;  // steps in that piece: 32 KiB

struct alignas(64) Sums {
  uint8_t data[kQueryRows * kPanel * sizeof(float)];
};
constexpr size_t kSumBytes = kPanel * sizeof(float);

template <class Machine>
struct Level512 {
  using Wide = Bf16;
  static constexpr int kFirstOperandRows = 16;
  static void begin() { Machine::begin(); }
  static void end() { Machine::end(); }

  static OperandKind operand_kind(WeightKind kind) {
    return kind == WeightKind::i8a8 ? OperandKind::int8 : OperandKind::wide;
  }
  static size_t panel_bytes(WeightKind kind, int k) { return panel_size(kind, k); }

  static constexpr uint8_t byte_code(int q) {
    return static_cast<uint8_t>(Machine::kBiasedBytes ? q + 128 : q);
  }

  static void pack(WeightKind kind, const Columns& w, uint8_t* panel) {
    const size_t bytes = panel_size(kind, w.k);
    memset(panel, 0, kScales);
    uint8_t* steps = panel + kScales;
    if (kind == WeightKind::i8a8) {
      memset(steps, byte_code(0), bytes - kScales);
    } else if (kind == WeightKind::i8) {
      memset(steps, Machine::kZeroCode, bytes - kScales);
    } else {
      memset(steps, 0, bytes - kScales);
    }
    for (int c = 0; c < kPanel; c++) pack_column(kind, w, c, panel);
  }

  static void read_column(const Matrix& m, int column, float* out) {
    const int c = column % kPanel;
    const uint8_t* panel = m.panels + as_size(column / kPanel) * m.panel_bytes;
    const float scale = load_as<float>(panel + as_size(c) * sizeof(float));
    const uint8_t* steps = panel + kScales;
    if (m.kind == WeightKind::bf16) {
      for (int i = 0; i < m.k; i++) out[i] = to_float(load_as<Bf16>(steps + wide_place(c, i)));
      return;
    }
    if (m.kind == WeightKind::i8a8) {
      for (int i = 0; i < m.k; i++) {
        const int q = steps[byte_place(c, i)];
        out[i] =
            scale * static_cast<float>(Machine::kBiasedBytes ? q - 128 : static_cast<int8_t>(q));
      }
      return;
    }
    alignas(64) uint8_t step[kStep];
    const float factor = scale * unit(m.kind);
    for (int i = 0; i < m.k; i++) {
      if (i % kGroup == 0)
        expand_group(m.kind, steps + as_size(i / kGroup) * group_bytes(m.kind), step);
      const float w = to_float(load_as<Bf16>(step + wide_place(c, i % kGroup)));
      out[i] = w == Machine::kExpandedZero ? 0.f : factor * w;
    }
  }

  template <class Sink>
  static void multiply(const Matrix& m, const uint8_t* panel, const Operand& a, int begin, int end,
                       const uint8_t* next, uint8_t* scratch, const Sink& sink) {
    const Job job{panel,  a, begin, end, round_up(m.k, kPad), NextPanel(next, m.panel_bytes),
                  scratch};
    switch (m.kind) {
      case WeightKind::bf16:
        return direct<false>(job, sink);
      case WeightKind::i8a8:
        return direct<true>(job, sink);
      case WeightKind::i8:
        return expanded<WeightKind::i8>(job, sink);
      case WeightKind::q8:
        return expanded<WeightKind::q8>(job, sink);
      case WeightKind::q4:
        return expanded<WeightKind::q4>(job, sink);
    }
  }

  // A block of one head: keys as a panel of 32 columns, then values as panels of 32 dimensions by
  // 32 keys; int8 as groups of codes, and then the scales of the keys and of the values.
  static size_t head_bytes(CacheKind cache, int width) {
    const size_t numbers = 2 * kBlock * as_size(width);
    return cache == CacheKind::bf16 ? numbers * 2 : numbers + 2 * kBlock * sizeof(float);
  }
  static const float* value_scales(const uint8_t* block, int width) {
    return reinterpret_cast<const float*>(block + 2 * kBlock * as_size(width)) + kBlock;
  }

  static void put_key(const float* row, int width, CacheKind cache, int slot, uint8_t* head) {
    if (cache == CacheKind::bf16) {
      for (int i = 0; i < width; i++) store_as(head + wide_place(slot, i), to_bf16(row[i]));
      return;
    }
    int8_t q[kMaxHead];
    put_scale(head, width, slot, quantise_row(row, width, q));
    for (int i = 0; i < width; i++) {
      head[as_size(i / kGroup) * 1024 + code_place(slot, i % kGroup, Machine::order)] =
          Machine::code(q[i]);
    }
  }

  static void put_value(const float* row, int width, CacheKind cache, int slot, uint8_t* head) {
    uint8_t* values = head + kBlock * as_size(width) * (cache == CacheKind::bf16 ? 2 : 1);
    if (cache == CacheKind::bf16) {
      for (int i = 0; i < width; i++) {
        store_as(values + as_size(i / 32) * kStep + wide_place(i % 32, slot), to_bf16(row[i]));
      }
      return;
    }
    int8_t q[kMaxHead];
    put_scale(head, width, kBlock + slot, quantise_row(row, width, q));
    for (int i = 0; i < width; i++) {
      values[as_size(i / 32) * 1024 + code_place(i % 32, slot, Machine::order)] =
          Machine::code(q[i]);
    }
  }

  static void scores(CacheKind cache, const Chunk& chunk, int width, const uint8_t* const* queries,
                     int rows, float* scores, uint8_t* rest, CachePrefetch& ahead) {
    const size_t row_bytes = as_size(width) * sizeof(Bf16);
    for (int r = 0; r < rows; r++) memcpy(rest + as_size(r) * row_bytes, queries[r], row_bytes);
    uint8_t* steps = rest + kQueryRows * row_bytes;
    const int lines = lines_a_part(cache);
    for (int b = 0; b < chunk.num_blocks; b++) {
      const uint8_t* keys = chunk.blocks[b];
      float* out = scores + (chunk.first_block + b) * kBlock;
      if (cache == CacheKind::i8) keys = expand_groups(keys, width / kGroup, steps);
      Machine::template multiply<false>(
          rest, row_bytes, Linear{keys}, width / kGroup, rows, reinterpret_cast<uint8_t*>(out),
          kChunk * sizeof(float), [&](int, int) { ahead.some(lines); }, false);
      if (cache == CacheKind::i8) scale_scores(chunk.blocks[b], width, rows, out);
    }
  }

  static void weigh(CacheKind cache, const Chunk& chunk, int width, const Wide* p, int rows,
                    float* out, size_t out_stride, uint8_t* rest, CachePrefetch& ahead) {
    const size_t block = kBlock * as_size(width) * 2;
    const uint8_t* values[kChunkBlocks];
    for (int b = 0; b < chunk.num_blocks; b++) {
      const uint8_t* from =
          chunk.blocks[b] + kBlock * as_size(width) * (cache == CacheKind::bf16 ? 2 : 1);
      uint8_t* copy = rest + as_size(b) * block;
      const int keys = chunk.num_keys - (chunk.first_block + b) * kBlock;
      if (cache == CacheKind::i8) {
        values[b] = expand_groups(from, width / 32, copy);
      } else {
        values[b] = keys < kBlock ? copy_values(from, width, keys, copy) : from;
      }
    }
    const uint8_t* weights = reinterpret_cast<const uint8_t*>(p + chunk.first_block * kBlock);
    const int lines = lines_a_part(cache);
    for (int i = 0; i < width; i += 32) {
      const size_t place = as_size(i / 32) * kStep;
      Machine::template multiply<false>(
          weights, kChunk * sizeof(Wide), [&](int k) { return values[k] + place; },
          chunk.num_blocks, rows, reinterpret_cast<uint8_t*>(out + i), out_stride * sizeof(float),
          [&](int, int) { ahead.some(lines); }, false);
    }
  }

  static size_t scratch_bytes(int max_k, int width) {
    const size_t product = as_size(round_up(max_k, kPad)) * 64 + kTallRows * kSumBytes;
    const size_t attention = as_size(width) * 64 * (1 + kChunkBlocks);
    return product > attention ? product : attention;
  }

 private:
  struct Job {
    const uint8_t* panel;
    const Operand& a;
    int begin, end, k;
    NextPanel next;
    uint8_t* scratch;

    const uint8_t* row(int r) const { return a.data + as_size(r) * a.row_bytes; }
  };

  static constexpr float unit(WeightKind kind) {
    return kind == WeightKind::i8 ? Machine::kCodeUnit : Machine::kGroupUnit;
  }

  static void pack_column(WeightKind kind, const Columns& w, int c, uint8_t* panel) {
    uint8_t* steps = panel + kScales;
    const size_t first = as_size(c) * as_size(w.k);
    float scale = 1.f;
    if (kind == WeightKind::bf16) {
      for (int i = 0; i < w.k; i++) {
        store_as(steps + wide_place(c, i), to_bf16(w.values[first + as_size(i)]));
      }
    } else if (kind == WeightKind::i8a8) {
      scale = w.scales[c];
      for (int i = 0; i < w.k; i++) {
        steps[byte_place(c, i)] = byte_code(w.quants[first + as_size(i)]);
      }
    } else {
      scale = kind == WeightKind::i8 ? w.scales[c] : column_unit(w, c, kind == WeightKind::q4);
      for (int g = 0; g * kGroup < w.k; g++) {
        pack_group(kind, w, c, g, scale, steps + as_size(g) * group_bytes(kind));
      }
    }
    store_as(panel + as_size(c) * sizeof scale, scale);
  }

  static void pack_group(WeightKind kind, const Columns& w, int c, int g, float scale,
                         uint8_t* group) {
    const int8_t* q = w.quants + as_size(c) * as_size(w.k) + g * kGroup;
    const int count = w.k - g * kGroup < kGroup ? w.k - g * kGroup : kGroup;
    const size_t place = as_size(c) * as_size((w.k + kGroup - 1) / kGroup) + as_size(g);
    if (kind != WeightKind::i8 && scale != 0) put_half(group, 0, c, w.scales[place] / scale);
    if (kind == WeightKind::q4 && scale != 0)
      put_half(group, kHalves, c, w.minimums[place] / scale);
    uint8_t* codes = group + group_head(kind);
    for (int i = 0; i < count; i++) {
      if (kind == WeightKind::q4) {
        codes[nibble_place(c, i, Machine::order)] |= static_cast<uint8_t>(q[i] << (i / 4 % 2 * 4));
      } else {
        codes[code_place(c, i, Machine::order)] = Machine::code(q[i]);
      }
    }
  }

  template <WeightKind kKind>
  static HEADRACE_INLINE void expand_all(const uint8_t* group, uint8_t* step) {
    for (int i = 0; i < 4; i++) Machine::template expand<kKind>(group, step, i);
  }
  static void expand_group(WeightKind kind, const uint8_t* group, uint8_t* step) {
    if (kind == WeightKind::i8) return expand_all<WeightKind::i8>(group, step);
    if (kind == WeightKind::q8) return expand_all<WeightKind::q8>(group, step);
    expand_all<WeightKind::q4>(group, step);
  }
  static const uint8_t* expand_groups(const uint8_t* groups, int count, uint8_t* steps) {
    for (int g = 0; g < count; g++) {
      expand_all<WeightKind::i8>(groups + as_size(g) * 1024, steps + as_size(g) * kStep);
    }
    return steps;
  }

  // Sums become floats: int32 by the scales of column and row, others by the column's.
  template <bool kInt8>
  static HEADRACE_INLINE void apply_scales(float* sums, int rows, const Floats (&scales)[2],
                                           const float* row_scales) {
    for (int r = 0; r < rows; r++) {
      for (int i = 0; i < 2; i++) {
        float* p = sums + r * kPanel + i * kLanes;
        if constexpr (kInt8) {
          const Floats v = __builtin_convertvector(load_as<Ints>(p), Floats);
          store(p, v * (scales[i] * row_scales[r]));
        } else {
          store(p, load(p) * scales[i]);
        }
      }
    }
  }

  template <bool kInt8, class Sink>
  static HEADRACE_INLINE void hand_over(const Job& job, int first, int rows, uint8_t* sums,
                                        float factor, const Sink& sink) {
    float* floats = reinterpret_cast<float*>(sums);
    const Floats scales[2] = {load_as<Floats>(job.panel) * factor,
                              load_as<Floats>(job.panel + 64) * factor};
    apply_scales<kInt8>(floats, rows, scales, kInt8 ? job.a.scales + first : nullptr);
    sink(first, rows, floats);
  }

  // Lines that the sink will write are fetched while the sums are made, a row at a time.
  template <class Sink>
  static HEADRACE_INLINE void fetch_output(const Sink& sink, int first, int rows, int slot) {
    if (slot < rows) sink.fetch(first + slot);
  }

  template <bool kInt8, class Sink>
  static void direct(const Job& job, const Sink& sink) {
    const Linear steps{job.panel + kScales};
    const int count = job.k * (kInt8 ? 1 : 2) / 64;
    if (kInt8 && job.end - job.begin > kQueryRows && count > kTallSteps)
      return tall(job, count, sink);
    Sums sums[2];  // by turns: one is finished while the other fills
    NextPanel next = job.next;
    for (int first = job.begin, turn = 0; first < job.end; first += kQueryRows, turn ^= 1) {
      const int rows = job.end - first < kQueryRows ? job.end - first : kQueryRows;
      Machine::template multiply<kInt8>(
          job.row(first), job.a.row_bytes, steps, count, rows, sums[turn].data, kSumBytes,
          [&](int k, int part) {
            next.lines(8);
            fetch_output(sink, first, rows, k * 4 + part);
          },
          false);
      hand_over<kInt8>(job, first, rows, sums[turn].data, 1.f, sink);
    }
  }

  // int8 with many rows and a panel beyond L1: piece by piece of the panel, over kTallRows rows.
  template <class Sink>
  static void tall(const Job& job, int count, const Sink& sink) {
    uint8_t* sums = job.scratch;
    NextPanel next = job.next;
    for (int top = job.begin; top < job.end; top += kTallRows) {
      const int bottom = job.end - top < kTallRows ? job.end : top + kTallRows;
      for (int k = 0; k < count; k += kTallSteps) {
        const int steps = count - k < kTallSteps ? count - k : kTallSteps;
        for (int first = top; first < bottom; first += kQueryRows) {
          const int rows = bottom - first < kQueryRows ? bottom - first : kQueryRows;
          uint8_t* out = sums + as_size(first - top) * kSumBytes;
          Machine::template multiply<true>(
              job.row(first) + k * 64, job.a.row_bytes,
              Linear{job.panel + kScales + as_size(k) * kStep}, steps, rows, out, kSumBytes,
              [&](int s, int part) {
                next.lines(2);
                if (k + steps == count) fetch_output(sink, first, rows, s * 4 + part);
              },
              k > 0);
          if (k + steps == count) hand_over<true>(job, first, rows, out, 1.f, sink);
        }
      }
    }
  }

  // Codes are expanded kAhead steps before they are multiplied: into a small ring while the rows
  // are few, else into the whole panel, which the other rows then use as it is.
  template <WeightKind kKind, class Sink>
  static void expanded(const Job& job, const Sink& sink) {
    constexpr int kAhead = 2;
    constexpr int kLines = static_cast<int>((group_bytes(kKind) + 255) / 256);
    const uint8_t* groups = job.panel + kScales;
    const int count = job.k / kGroup;
    const Ring steps{job.scratch, job.end - job.begin > Machine::kRowsAtOnce ? -1 : 3};
    const auto expand = [&](int k, int part) {
      Machine::template expand<kKind>(groups + as_size(k) * group_bytes(kKind),
                                      job.scratch + as_size(k & steps.mask) * kStep, part);
    };
    for (int i = 0; i < kAhead * 4; i++) expand(i / 4, i % 4);
    Sums sums[2];
    NextPanel next = job.next;
    for (int first = job.begin, turn = 0; first < job.end; first += kQueryRows, turn ^= 1) {
      const int rows = job.end - first < kQueryRows ? job.end - first : kQueryRows;
      const auto run = [&](auto&& hook) {
        Machine::template multiply<false>(job.row(first), job.a.row_bytes, steps, count, rows,
                                          sums[turn].data, kSumBytes, hook, false);
      };
      if (first == job.begin) {
        run([&](int k, int part) {
          next.lines(kLines);
          if (k + kAhead < count) expand(k + kAhead, part);
          fetch_output(sink, first, rows, k * 4 + part);
        });
      } else {
        run([&](int k, int part) { fetch_output(sink, first, rows, k * 4 + part); });
      }
      hand_over<false>(job, first, rows, sums[turn].data, unit(kKind), sink);
    }
  }

  static float quantise_row(const float* row, int width, int8_t* out) {
    return quantise_values([=](int i) { return load(row + i); }, width, out);
  }
  static void put_scale(uint8_t* head, int width, int index, float scale) {
    store_as(head + 2 * kBlock * as_size(width) + as_size(index) * sizeof scale,
             scale * Machine::kCodeUnit);
  }

  // Of the cache, to be fetched in each of the four parts of a step: as many as a step holds.
  static constexpr int lines_a_part(CacheKind cache) {
    return static_cast<int>(kStep / 64 / 4) / (cache == CacheKind::bf16 ? 1 : 2);
  }

  static void scale_scores(const uint8_t* block, int width, int rows, float* scores) {
    const float* keys = value_scales(block, width) - kBlock;
    for (int r = 0; r < rows; r++) {
      for (int i = 0; i < kBlock; i += kLanes) {
        float* p = scores + r * kChunk + i;
        store(p, load(p) * load(keys + i));
      }
    }
  }

  // The first `keys` keys of a block's values, zeros for those that were not written yet.
  static const uint8_t* copy_values(const uint8_t* from, int width, int keys, uint8_t* to) {
    for (size_t tile = 0; tile < as_size(width) * 64; tile += kTile) {
      for (int row = 0; row < 16; row++) {
        const size_t place = tile + as_size(row) * 64;
        const uint32_t mask = row * 2 + 1 < keys ? ~0u : row * 2 < keys ? 0xffffu : 0u;
        store_as(to + place, load_as<Bits>(from + place) & mask);
      }
    }
    return to;
  }
};

}  // namespace
}  // namespace headrace
