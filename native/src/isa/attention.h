// Attention over a paged cache, in chunks of kChunk keys at absolute positions.
#pragma once

#include "../kernels.h"
#include "rows.h"
#include "vec.h"

namespace headrace {
namespace {

constexpr int kChunkBlocks = kChunk / kBlock;
constexpr int kState =
    16;  // floats after a row's sums in a partial: max, sum of exponentials, free

// One item's working memory, cut out of the thread's scratch.
struct AttentionScratch {
  float* scores;           // [kQueryRows][kChunk]
  uint8_t* probabilities;  // wide [kQueryRows][kChunk]
  float* chunk;            // [kQueryRows][width + kState]
  float* total;            // [kQueryRows][width + kState]
  uint8_t* rest;           // the level's own
};

inline size_t attention_bytes(int width) {
  const size_t rows = kQueryRows, row = static_cast<size_t>(width) + kState;
  return rows * kChunk * 2 * sizeof(float) + 2 * rows * row * sizeof(float);
}

inline AttentionScratch cut_scratch(uint8_t* scratch, int width) {
  const size_t row = static_cast<size_t>(width) + kState;
  float* p = reinterpret_cast<float*>(scratch);
  AttentionScratch s;
  s.scores = p;
  s.probabilities = reinterpret_cast<uint8_t*>(p + kQueryRows * kChunk);
  s.chunk = p + 2 * kQueryRows * kChunk;
  s.total = s.chunk + kQueryRows * row;
  s.rest = reinterpret_cast<uint8_t*>(s.total + kQueryRows * row);
  return s;
}

// The blocks of a chunk that hold keys which some row of the item sees.
struct Chunk {
  int first_key;                        // absolute position of key 0 of the chunk
  int first_block;                      // within the chunk
  int num_blocks;                       // from first_block on
  int num_keys;                         // of the chunk up to the last row's own
  const uint8_t* blocks[kChunkBlocks];  // of this kv head, from first_block on
};

struct Range {
  int begin, end;
};

inline int position(const AttentionItem& item, int group, int row) {
  return item.num_computed + (item.first_row + row) / group;
}

// Keys of the chunk that this row sees, relative to the chunk; empty when begin >= end.
inline Range visible(const Attention& a, int position, int first_key) {
  const int oldest = a.window && position >= a.window ? position - a.window + 1 : 0;
  const int begin = oldest > first_key ? oldest - first_key : 0;
  const int end = position + 1 - first_key;
  return {begin, end < kChunk ? end : kChunk};
}

inline Chunk find_chunk(const Attention& a, const AttentionItem& item, int index) {
  const int group = a.num_heads / a.num_kv_heads;
  Chunk c;
  c.first_key = index * kChunk;
  const int begin = visible(a, position(item, group, 0), c.first_key).begin;
  c.num_keys = visible(a, position(item, group, item.num_rows - 1), c.first_key).end;
  c.first_block = begin / kBlock;
  const int last = (c.num_keys + kBlock - 1) / kBlock;
  c.num_blocks = last > c.first_block ? last - c.first_block : 0;
  for (int b = 0; b < c.num_blocks; b++) {
    const int32_t block = item.block_table[index * kChunkBlocks + c.first_block + b];
    c.blocks[b] = a.kv + static_cast<size_t>(block) * a.block_bytes +
                  static_cast<size_t>(item.kv_head) * a.head_bytes;
  }
  return c;
}

// Where the values of a block of one head begin: after the keys, which are as many.
inline size_t values_place(CacheKind cache, int width) {
  return kBlock * static_cast<size_t>(width) * (cache == CacheKind::bf16 ? sizeof(Bf16) : 1);
}

// What a thread asks memory for while it computes. The cache is read piece by piece: the keys of a
// chunk's blocks, then their values, then the same of the chunk that follows.
class CachePrefetch {
 public:
  CachePrefetch(const Attention& a, const Chunk& now, const Chunk& following)
      : bytes_(values_place(a.cache, a.width)),
        distance_(bytes_ < kAheadBytes ? static_cast<int>(kAheadBytes / bytes_) : 1),
        walked_(distance_) {
    add(now);
    add(following);
    for (int b = 0; a.cache == CacheKind::i8 && b < following.num_blocks; b++) {
      for (int i = 0; i < kScaleLines; i++) prefetch(following.blocks[b] + 2 * bytes_ + i * 64);
    }
  }

  // Called when a piece is begun: the one to ask for meanwhile, as large. At the end there is none,
  // and to ask again for what is here does no harm.
  const uint8_t* piece() {
    const int now = begun_++;
    return pieces_[now + distance_ < num_pieces_ ? now + distance_ : now];
  }

  // For whoever does not read piece by piece: the next lines of the same pieces.
  HEADRACE_INLINE void some(int lines) {
    if (walked_ >= num_pieces_) return;
    const uint8_t* p = pieces_[walked_] + place_;
    for (int i = 0; i < lines; i++) prefetch(p + i * 64);  // past the end does no harm
    place_ += static_cast<size_t>(lines) * 64;
    if (place_ >= bytes_) {
      place_ = 0;
      walked_++;
    }
  }

 private:
  static constexpr size_t kAheadBytes = 8192;
  static constexpr int kScaleLines = 2 * kBlock * sizeof(float) / 64;

  void add(const Chunk& chunk) {
    for (int b = 0; b < chunk.num_blocks; b++) {
      pieces_[num_pieces_ + b] = chunk.blocks[b];
      pieces_[num_pieces_ + chunk.num_blocks + b] = chunk.blocks[b] + bytes_;
    }
    num_pieces_ += 2 * chunk.num_blocks;
  }

  const uint8_t* pieces_[4 * kChunkBlocks];
  size_t bytes_, place_ = 0;
  int num_pieces_ = 0, begun_ = 0;
  int distance_;  // in pieces
  int walked_;
};

// Minus infinity for the keys that a row does not see beside those that it does, in their vectors.
inline void hide_unseen(float* scores, Range seen) {
  for (int i = seen.begin / kLanes * kLanes; i < seen.begin; i++) scores[i] = -kInfinity;
  for (int i = seen.end; i % kLanes; i++) scores[i] = -kInfinity;
}

inline float largest_score(const float* scores, int begin, int end) {
  Floats peak = splat(-kInfinity);
  for (int i = begin; i < end; i += kLanes) peak = max(load(scores + i), peak);
  return largest(peak);
}

// Writes the exponentials of scores [begin, end), each multiplied by its value's scale where there
// are any; returns their sum, before that. value_scales: of each block from first_block on.
template <bool kScaled, class Wide>
float exponentials(const float* scores, int begin, int end, float most, float scale,
                   const float* const* value_scales, int first_block, Wide* out) {
  const Floats factor = splat(scale * kLog2E);
  Floats total = {};
  for (int i = begin; i < end; i += kLanes) {
    Floats p = exp2_down((load(scores + i) - most) * factor);
    total += p;
    if constexpr (kScaled) {  // a slot nobody wrote may hold any scale
      p = p > 0.f ? p * load(value_scales[i / kBlock - first_block] + i % kBlock) : Floats{};
    }
    store(out + i, p);
  }
  return sum(total);
}

// The exponentials of a row's scores against its own maximum, zeros where it sees nothing; blocks
// [first_block, last_block) of the chunk.
template <class Wide>
void softmax(float* scores, Range seen, int first_block, int last_block, float scale,
             const float* const* value_scales, Wide* out, float* state) {
  const int end = last_block * kBlock;
  const bool empty = seen.begin >= seen.end;
  const int first = empty ? end : seen.begin / kLanes * kLanes;
  const int last = empty ? end : round_up(seen.end, kLanes);
  if (!empty) hide_unseen(scores, seen);
  const float most = largest_score(scores, first, last);
  for (int i = first_block * kBlock; i < first; i += kLanes) store(out + i, Floats{});
  for (int i = last; i < end; i += kLanes) store(out + i, Floats{});
  state[0] = most * scale;
  state[1] =
      value_scales
          ? exponentials<true>(scores, first, last, most, scale, value_scales, first_block, out)
          : exponentials<false>(scores, first, last, most, scale, value_scales, first_block, out);
}

// Folds a chunk's sums (width numbers, max, sum of exponentials) into the row's. Never inlined: the
// same code whether the chunks ran in one item or apart.
__attribute__((noinline)) inline void merge_state(float* total, const float* chunk, int width) {
  const float most = chunk[width];
  if (most == -kInfinity) return;
  const float before = total[width];
  const float peak = before > most ? before : most;
  const float keep = before == -kInfinity ? 0.f : exp(splat(before - peak))[0];
  const float add = exp(splat(most - peak))[0];
  for (int i = 0; i < width; i += kLanes) {
    store(total + i, fma(load(chunk + i), splat(add), load(total + i) * keep));
  }
  total[width] = peak;
  total[width + 1] = total[width + 1] * keep + chunk[width + 1] * add;
}

inline void clear_state(float* total, int width) {
  memset(total, 0, (static_cast<size_t>(width) + kState) * sizeof(float));
  total[width] = -kInfinity;
}

template <class Wide>
void write_attention(const Attention& a, int token, int head, const float* total) {
  const float inverse = 1.f / total[a.width + 1];
  uint8_t* row = a.out.data + static_cast<size_t>(token) * a.out.row_bytes;
  for (int i = 0; i < a.head_dim; i += kLanes) {
    const Floats v = load(total + i) * inverse;
    const size_t place =
        static_cast<size_t>(head) * static_cast<size_t>(a.head_dim) + static_cast<size_t>(i);
    if (a.out.wide) {
      store_first(reinterpret_cast<Wide*>(row) + place, v, a.head_dim - i);
    } else {
      store_first(reinterpret_cast<float*>(row) + place, v, a.head_dim - i);
    }
  }
}

// Sums and state of every row over one chunk. A level supplies
//  scores(cache, chunk, width, queries, query_bytes, rows, scores, rest, prefetch):
//    scores[r][32 * block + key] = q . k with the keys' scales applied, from first_block on;
//  weigh(cache, chunk, width, probabilities, rows, out, out_stride, rest, prefetch):
//    out[r][0 .. width) = sum over keys [first_block * 32, num_keys) of p[r][key] * v[key];
//  value_scales(block bytes, width): the 32 scales of an int8 block.
template <class Level>
void attend_chunk(const Attention& a, const AttentionItem& item, const Chunk& chunk,
                  const AttentionScratch& s, CachePrefetch& ahead) {
  using Wide = typename Level::Wide;
  const int group = a.num_heads / a.num_kv_heads;
  const size_t row = static_cast<size_t>(a.width) + kState;
  const uint8_t* queries[kQueryRows];
  for (int r = 0; r < item.num_rows; r++) {
    const int index = item.first_row + r;
    const int place =
        (item.first_token + index / group) * a.num_heads + item.kv_head * group + index % group;
    queries[r] =
        a.queries + static_cast<size_t>(place) * static_cast<size_t>(a.width) * sizeof(Wide);
  }
  Level::scores(a.cache, chunk, a.width, queries, item.num_rows, s.scores, s.rest, ahead);
  const float* scales[kChunkBlocks];
  const bool scaled = a.cache == CacheKind::i8;
  for (int b = 0; b < chunk.num_blocks; b++) {
    scales[b] = scaled ? Level::value_scales(chunk.blocks[b], a.width) : nullptr;
  }
  Wide* p = reinterpret_cast<Wide*>(s.probabilities);
  for (int r = 0; r < item.num_rows; r++) {
    const Range seen = visible(a, position(item, group, r), chunk.first_key);
    softmax(s.scores + r * kChunk, seen, chunk.first_block, chunk.first_block + chunk.num_blocks,
            a.scale, scaled ? scales : nullptr, p + r * kChunk,
            s.chunk + static_cast<size_t>(r) * row + a.width);
  }
  Level::weigh(a.cache, chunk, a.width, p, item.num_rows, s.chunk, row, s.rest, ahead);
}

// The chunk that the thread reads after this one of the item.
inline Chunk find_following(const Attention& a, const AttentionItem& item, int chunk,
                            const AttentionItem* next) {
  if (chunk + 1 < item.last_chunk) return find_chunk(a, item, chunk + 1);
  if (next && next->num_rows) return find_chunk(a, *next, next->first_chunk);
  Chunk none;
  none.num_blocks = 0;
  return none;
}

template <class Level>
void attend(const Attention& a, const AttentionItem& item, const AttentionItem* next,
            uint8_t* scratch) {
  const AttentionScratch s = cut_scratch(scratch, a.width);
  const int group = a.num_heads / a.num_kv_heads;
  const size_t row = static_cast<size_t>(a.width) + kState;
  for (int r = 0; r < item.num_rows; r++) {
    clear_state(s.total + static_cast<size_t>(r) * row, a.width);
    if (item.partials) clear_state(item.partials + static_cast<size_t>(r) * row, a.width);
  }
  Chunk following = find_chunk(a, item, item.first_chunk);
  for (int c = item.first_chunk; c < item.last_chunk; c++) {
    const Chunk chunk = following;
    following = find_following(a, item, c, next);
    if (!chunk.num_blocks) continue;
    CachePrefetch ahead(a, chunk, following);
    attend_chunk<Level>(a, item, chunk, s, ahead);
    float* total = item.partials ? item.partials : s.total;
    for (int r = 0; r < item.num_rows; r++) {
      float* into = total + static_cast<size_t>(r) * row;
      const float* from = s.chunk + static_cast<size_t>(r) * row;
      if (item.partials) {
        memcpy(into, from, row * sizeof(float));
      } else {
        merge_state(into, from, a.width);
      }
    }
  }
  for (int r = 0; r < item.num_rows && !item.partials; r++) {
    const int index = item.first_row + r;
    write_attention<typename Level::Wide>(a, item.first_token + index / group,
                                          item.kv_head * group + index % group,
                                          s.total + static_cast<size_t>(r) * row);
  }
}

template <class Wide>
void merge(const Attention& a, int token, int head, const float* partials, size_t stride,
           int count) {
  alignas(64) float total[kMaxHead + kState];
  clear_state(total, a.width);
  for (int i = 0; i < count; i++) {
    merge_state(total, partials + static_cast<size_t>(i) * stride, a.width);
  }
  write_attention<Wide>(a, token, head, total);
}

// A key is transformed into a row of floats, which the level puts into its order.
template <class Level>
void store_key(const float* k, const HeadTransform& t, CacheKind cache, int slot, uint8_t* head) {
  alignas(64) float row[kMaxHead];
  transform_head(k, t, row);
  Level::put_key(row, round_up(t.dim, kPad), cache, slot, head);
}

template <class Level>
void store_value(const float* v, int dim, CacheKind cache, int slot, uint8_t* head) {
  alignas(64) float row[kMaxHead];
  const int width = round_up(dim, kPad);
  memcpy(row, v, static_cast<size_t>(dim) * sizeof(float));
  memset(row + dim, 0, static_cast<size_t>(width - dim) * sizeof(float));
  Level::put_value(row, width, cache, slot, head);
}

}  // namespace
}  // namespace headrace
