// The AMX registers and instructions. What hardware answers with a fault ends the process here.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "numbers.h"

namespace headrace::emulation {

struct Tiles {
  bool configured = false;
  int rows[8] = {}, row_bytes[8] = {};
  alignas(64) uint8_t data[8][16][64] = {};
};
inline thread_local Tiles tiles;

inline void fault_if(bool wrong, const char* what) {
  if (!wrong) return;
  std::fprintf(stderr, "tile instruction would fault: %s\n", what);
  std::abort();
}

inline void tile_loadconfig(const void* from) {
  uint8_t c[64];
  memcpy(c, from, sizeof c);
  tiles = Tiles{};
  if (c[0] == 0) return;
  fault_if(c[0] != 1, "unknown palette");
  for (int i = 1; i < 16; i++) fault_if(c[i] != 0, "start_row or reserved bytes");
  for (int i = 32; i < 48; i++) fault_if(c[i] != 0, "row bytes of a tile that does not exist");
  for (int i = 56; i < 64; i++) fault_if(c[i] != 0, "rows of a tile that does not exist");
  for (int t = 0; t < 8; t++) {
    uint16_t bytes;
    memcpy(&bytes, c + 16 + 2 * t, sizeof bytes);
    fault_if(bytes > 64 || c[48 + t] > 16, "tile too large");
    fault_if((bytes == 0) != (c[48 + t] == 0), "half of a tile's size is zero");
    tiles.row_bytes[t] = bytes;
    tiles.rows[t] = c[48 + t];
  }
  tiles.configured = true;
}
inline void tile_release() { tiles = Tiles{}; }

inline void check_tile(int t) {
  fault_if(!tiles.configured, "no configuration");
  fault_if(tiles.rows[t] == 0, "tile without a size");
}

inline void tile_zero(int t) {
  check_tile(t);
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
}
inline void tile_loadd(int t, const void* base, size_t stride) {
  check_tile(t);
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
  for (int r = 0; r < tiles.rows[t]; r++) {
    memcpy(tiles.data[t][r], static_cast<const uint8_t*>(base) + static_cast<size_t>(r) * stride,
           static_cast<size_t>(tiles.row_bytes[t]));
  }
}
inline void tile_stored(int t, void* base, size_t stride) {
  check_tile(t);
  for (int r = 0; r < tiles.rows[t]; r++) {
    memcpy(static_cast<uint8_t*>(base) + static_cast<size_t>(r) * stride, tiles.data[t][r],
           static_cast<size_t>(tiles.row_bytes[t]));
  }
}

inline void check_product(int c, int a, int b) {
  check_tile(c), check_tile(a), check_tile(b);
  fault_if(c == a || c == b || a == b, "the same tile twice");
  fault_if(tiles.row_bytes[a] != 4 * tiles.rows[b] || tiles.rows[c] != tiles.rows[a] ||
               tiles.row_bytes[c] != tiles.row_bytes[b],
           "sizes that do not fit");
}

inline void tile_dpbssd(int c, int a, int b) {
  check_product(c, a, b);
  for (int m = 0; m < tiles.rows[c]; m++) {
    I32 sum;
    memcpy(&sum, tiles.data[c][m], sizeof sum);
    for (int k = 0; k < tiles.row_bytes[a]; k++) {
      I32 columns;
      memcpy(&columns, tiles.data[b][k / 4], sizeof columns);
      const I32 numbers = (I32)((U32)columns << (24 - k % 4 * 8)) >> 24;
      sum += numbers * static_cast<int8_t>(tiles.data[a][m][k]);
    }
    memcpy(tiles.data[c][m], &sum, sizeof sum);
  }
}

// A tile of bf16 as single precision: numbers at even places along k, then those at odd ones.
struct Unpacked {
  alignas(64) float numbers[2][16][16];
};
inline void unpack(const uint8_t (&tile)[16][64], Unpacked& out) {
  for (int r = 0; r < 16; r++) {
    U32 pairs;
    memcpy(&pairs, tile[r], sizeof pairs);
    const F32 even = even_bf16(pairs), odd = odd_bf16(pairs);
    memcpy(out.numbers[0][r], &even, sizeof even);
    memcpy(out.numbers[1][r], &odd, sizeof odd);
  }
}

// Even and odd numbers along k are summed apart, from zero; the two sums are added, then the old
// sum. Eight columns at a time, as this is where emulated models spend their time.
inline void add_products(const Unpacked& a, const Unpacked& b, int depth, int row, int column,
                         float* c) {
  __m256 sums[2] = {};
  for (int k = 0; k < depth; k++) {
    for (int odd = 0; odd < 2; odd++) {
      sums[odd] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a.numbers[odd][row][k]),
                                  _mm256_load_ps(&b.numbers[odd][k][column]), sums[odd]);
    }
  }
  _mm256_storeu_ps(c, _mm256_add_ps(_mm256_loadu_ps(c), _mm256_add_ps(sums[0], sums[1])));
}

inline void tile_dpbf16ps(int c, int a, int b) {
  check_product(c, a, b);
  Unpacked left, right;
  unpack(tiles.data[a], left);
  unpack(tiles.data[b], right);
  const BfloatMode mode;
  for (int m = 0; m < tiles.rows[c]; m++) {
    float sums[16];
    memcpy(sums, tiles.data[c][m], sizeof sums);
    for (int n = 0; n < 16; n += 8) add_products(left, right, tiles.rows[b], m, n, sums + n);
    memcpy(tiles.data[c][m], sums, sizeof sums);
  }
}

}  // namespace headrace::emulation

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) headrace::emulation::tile_loadconfig(from)
#define _tile_release() headrace::emulation::tile_release()
#define _tile_zero(t) headrace::emulation::tile_zero(t)
#define _tile_loadd(t, base, stride) headrace::emulation::tile_loadd(t, base, stride)
#define _tile_stored(t, base, stride) headrace::emulation::tile_stored(t, base, stride)
#define _tile_dpbssd(c, a, b) headrace::emulation::tile_dpbssd(c, a, b)
#define _tile_dpbf16ps(c, a, b) headrace::emulation::tile_dpbf16ps(c, a, b)
