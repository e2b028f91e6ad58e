// Times the kernels on the shapes of a small decoder, as shares of what this machine can do.
//   kernels_bench [isa] [threads] [what ...]    what: decode batch prefill attention;
//                                          bf16 i8 i8a8 q8 q4, all of them unless some are named
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpu.h"
#include "kernels.h"

using namespace headrace;

namespace {

constexpr int kLayers = 30, kHidden = 576, kHeads = 9, kKvHeads = 3, kHead = 64, kFfn = 1536,
              kVocab = 49152;

uint8_t* allocate(size_t bytes) {
  auto* p = static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{64}));
  for (size_t i = 0; i < bytes; i++) {  // about 1 as bf16, float and half
    const size_t mixed = (i * 2654435761u) >> 13;
    p[i] = static_cast<uint8_t>(i % 2 ? 0x3d | (mixed & 0x80) : mixed);
  }
  return p;
}

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// f(thread) on every thread; the most processor time that one of them took.
template <class F>
double on_threads(int count, F&& f) {
  std::vector<double> seconds(static_cast<size_t>(count));
  const auto timed = [&](int t) {
    const double start = processor_seconds();
    f(t);
    seconds[static_cast<size_t>(t)] = processor_seconds() - start;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < count; t++) others.emplace_back(timed, t);
  timed(0);
  for (std::thread& t : others) t.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// The least of several runs, in processor time: other work on the machine only ever adds.
template <class F>
double least_seconds(F&& run, double budget = 0.3) {
  double least = 1e9, spent = 0;
  for (int i = 0; i < 3 || (spent < budget && i < 2000); i++) {
    const double s = run();
    least = std::min(least, s);
    spent += s;
  }
  return least;
}

struct Layer {
  Matrix matrix;
  Epilogue::Kind epilogue;
};

struct Decoder {
  const Kernels& kernels;
  WeightKind kind;
  size_t bytes = 0;
  double numbers = 0;
  std::vector<Layer> layers;

  Decoder(const Kernels& kernels, WeightKind kind) : kernels(kernels), kind(kind) {
    for (int i = 0; i < kLayers; i++) {
      add((kHeads + 2 * kKvHeads) * kHead, kHidden, Epilogue::Kind::store);
      add(kHidden, kHeads * kHead, Epilogue::Kind::add);
      add(2 * kFfn, kHidden, Epilogue::Kind::glu);
      add(kHidden, kFfn, Epilogue::Kind::add);
    }
    add(kVocab, kHidden, Epilogue::Kind::head);
    uint8_t* p = allocate(bytes);
    for (Layer& l : layers) {
      l.matrix.panels = p;
      p += l.matrix.panel_bytes * static_cast<size_t>(l.matrix.num_panels());
    }
  }
  void add(int n, int k, Epilogue::Kind epilogue) {
    Matrix m;
    m.kind = kind, m.n = n, m.k = k, m.panel_bytes = kernels.panel_bytes(kind, k);
    bytes += m.panel_bytes * static_cast<size_t>(m.num_panels());
    numbers += static_cast<double>(n) * k;
    layers.push_back({m, epilogue});
  }
};

size_t row_bytes(const Kernels& kernels, WeightKind kind, int k) {
  const size_t padded = static_cast<size_t>(round_up(k, kPad));
  switch (kernels.operand_kind(kind)) {
    case OperandKind::int8:
      return padded;
    case OperandKind::int16:
      return Int16Row::bytes(k);
    case OperandKind::wide:
      break;
  }
  return padded * kernels.wide_bytes;
}

// All products of a step of `rows` rows, `head_rows` of them through the head.
double step(const Decoder& d, int rows, int head_rows, int threads, const Operand& rows_of_ffn,
            float* out, HeadPanel* heads, std::vector<uint8_t*>& scratch) {
  return on_threads(threads, [&](int t) {
    d.kernels.begin();
    for (const Layer& l : d.layers) {
      const int panels = l.matrix.num_panels();
      const int begin = panels * t / threads, end = panels * (t + 1) / threads;
      Epilogue e;
      e.kind = l.epilogue;
      e.out = l.epilogue == Epilogue::Kind::head ? nullptr : out;
      e.out_stride = static_cast<size_t>(l.matrix.n);
      e.rows = {reinterpret_cast<uint8_t*>(out), kFfn * d.kernels.wide_bytes, true};
      e.heads = heads;
      const int count = l.epilogue == Epilogue::Kind::head ? head_rows : rows;
      for (int p = begin; p < end; p++) {
        const uint8_t* next =
            p + 1 < end ? l.matrix.panels + static_cast<size_t>(p + 1) * l.matrix.panel_bytes
                        : nullptr;
        Operand a = rows_of_ffn;
        a.row_bytes = row_bytes(d.kernels, d.kind, l.matrix.k);
        d.kernels.product(l.matrix, p, a, 0, count, e, next, scratch[static_cast<size_t>(t)]);
      }
    }
    d.kernels.end();
  });
}

// Sums 64-byte lines of a buffer far larger than the caches.
double read_bandwidth(int threads) {
  const size_t bytes = size_t{192} << 20;
  static const uint64_t* data = reinterpret_cast<const uint64_t*>(allocate(bytes));
  [[maybe_unused]] static volatile uint64_t keep;
  const double s = least_seconds([&] {
    return on_threads(threads, [&](int t) {
      const size_t n = bytes / 8 / static_cast<size_t>(threads);
      const uint64_t* p = data + n * static_cast<size_t>(t);
      uint64_t sum[8] = {};
      for (size_t i = 0; i < n; i += 8) {
        __builtin_prefetch(p + i + 512, 0, 2);
        for (size_t j = 0; j < 8; j++) sum[j] += p[i + j];
      }
      keep = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    });
  });
  return static_cast<double>(bytes) / s / 1e9;
}

typedef float Ymm __attribute__((vector_size(32)));

// Fused multiply-adds that wait for nothing: 16 operations each.
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_add(int count) {
  Ymm acc[10], x = {1, 1, 1, 1, 1, 1, 1, 1};
  for (int i = 0; i < 10; i++) acc[i] = x * static_cast<float>(i);
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < 10; j++) {
      __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(acc[j]) : "x"(x));
    }
  }
}
double peak_gflops(int threads) {
  constexpr int kCount = 2000000;
  const double least =
      least_seconds([&] { return on_threads(threads, [](int) { multiply_add(kCount); }); });
  return 160.0 * kCount * threads / least / 1e9;
}
#else
double peak_gflops(int) { return 0; }
#endif

struct Machine {
  int threads;
  double bandwidth, peak;
  bool kinds[5];  // to be timed
};

constexpr const char* kNames[] = {"bf16", "i8", "i8a8", "q8", "q4"};

void bench_products(const Kernels& kernels, const Machine& m, int rows, const char* what) {
  for (int kind = 0; kind < 5; kind++) {
    if (!m.kinds[kind]) continue;
    const Decoder d(kernels, static_cast<WeightKind>(kind));
    const size_t padded = static_cast<size_t>(round_up(rows, kernels.first_operand_rows));
    uint8_t* data = allocate(padded * row_bytes(kernels, d.kind, kFfn));
    std::vector<float> scales(padded, 1.f), out(static_cast<size_t>(rows) * 2 * kFfn);
    std::vector<HeadPanel> heads(static_cast<size_t>(rows) * kVocab / kPanel);
    std::vector<uint8_t*> scratch;
    for (int t = 0; t < m.threads; t++)
      scratch.push_back(allocate(kernels.scratch_bytes(kFfn, kHead)));
    const Operand a{data, 0, scales.data()};
    const int head_rows = rows > 64 ? 1 : rows;
    const double s = least_seconds(
        [&] { return step(d, rows, head_rows, m.threads, a, out.data(), heads.data(), scratch); });
    const double head = static_cast<double>(kVocab) * kHidden;
    const double operations = 2 * ((d.numbers - head) * rows + head * head_rows);
    const double gbs = static_cast<double>(d.bytes) / s / 1e9, gflops = operations / s / 1e9;
    std::printf("%-8s %-5s %8.2f ms  %6.1f GB/s (%3.0f %% of a read)  %7.1f GFLOP/s (%3.0f %%)\n",
                what, kNames[kind], s * 1e3, gbs, 100 * gbs / m.bandwidth, gflops,
                100 * gflops / m.peak);
    ::operator delete (const_cast<uint8_t*>(d.layers[0].matrix.panels), std::align_val_t{64});
    ::operator delete (data, std::align_val_t{64});
    for (uint8_t* p : scratch) ::operator delete (p, std::align_val_t{64});
  }
}

// One layer: `seqs` sequences of `context` tokens, the last `num_new` of them new.
void bench_attention(const Kernels& kernels, const Machine& m, CacheKind cache, int seqs,
                     int context, int num_new) {
  const int group = kHeads / kKvHeads, blocks = (context + kBlock - 1) / kBlock;
  Attention a{};
  a.cache = cache, a.head_dim = kHead, a.width = kHead;
  a.num_heads = kHeads, a.num_kv_heads = kKvHeads, a.scale = 0.125f;
  a.head_bytes = kernels.head_bytes(cache, kHead);
  a.block_bytes = a.head_bytes * kKvHeads;
  const size_t layer_bytes = a.block_bytes * static_cast<size_t>(blocks * seqs);
  const size_t num_layers = std::max<size_t>(1, (size_t{128} << 20) / layer_bytes);
  uint8_t* kv = allocate(layer_bytes * num_layers);
  const size_t query_row = kHeads * kHead * kernels.wide_bytes;
  a.queries = allocate(query_row * static_cast<size_t>(seqs * num_new));
  std::vector<float> out(static_cast<size_t>(seqs * num_new) * kHeads * kHead);
  a.out = {reinterpret_cast<uint8_t*>(out.data()), kHeads * kHead * sizeof(float), false};
  std::vector<int32_t> table;
  for (int b = 0; b < blocks * seqs; b++) table.push_back(b);
  std::vector<AttentionItem> items;
  double pairs = 0;
  for (int s = 0; s < seqs; s++) {
    for (int h = 0; h < kKvHeads; h++) {
      for (int first = 0; first < num_new * group; first += kQueryRows) {
        AttentionItem item{};
        item.block_table = table.data() + s * blocks;
        item.first_token = s * num_new;
        item.num_computed = context - num_new;
        item.kv_head = h, item.first_row = first;
        item.num_rows = std::min(kQueryRows, num_new * group - first);
        const int last = item.num_computed + (first + item.num_rows - 1) / group;
        item.last_chunk = last / kChunk + 1;
        pairs += static_cast<double>(item.num_rows) * (last + 1);
        items.push_back(item);
      }
    }
  }
  std::vector<uint8_t*> scratch;
  for (int t = 0; t < m.threads; t++) scratch.push_back(allocate(kernels.scratch_bytes(64, kHead)));
  const double seconds = least_seconds([&] {
    return on_threads(m.threads, [&](int t) {
      kernels.begin();
      for (size_t l = 0; l < num_layers; l++) {
        Attention layer = a;
        layer.kv = kv + l * layer_bytes;
        const size_t n = items.size(), threads = static_cast<size_t>(m.threads);
        const size_t begin = n * static_cast<size_t>(t) / threads;
        const size_t end = n * static_cast<size_t>(t + 1) / threads;
        for (size_t i = begin; i < end; i++) {
          kernels.attend(layer, items[i], i + 1 < end ? &items[i + 1] : nullptr,
                         scratch[static_cast<size_t>(t)]);
        }
      }
      kernels.end();
    });
  });
  const double layers = static_cast<double>(num_layers);
  const double gflops = 4 * pairs * kHead * layers / seconds / 1e9;
  const double gbs = static_cast<double>(layer_bytes) * layers / seconds / 1e9;
  std::printf(
      "attend %s %2d x %4d, %3d new: %8.1f us a layer  %6.1f GB/s (%3.0f %%)  %6.1f GFLOP/s"
      " (%3.0f %%)\n",
      cache == CacheKind::bf16 ? "bf16" : "i8  ", seqs, context, num_new, seconds / layers * 1e6,
      gbs, 100 * gbs / m.bandwidth, gflops, 100 * gflops / m.peak);
  ::operator delete (kv, std::align_val_t{64});
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels& kernels = chosen_kernels(argc > 1 ? argv[1] : nullptr, "the first argument");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Machine m;
  m.threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const auto asked = [&](const char* section) {
    for (int i = 3; i < argc; i++) {
      if (!std::strcmp(argv[i], section)) return true;
    }
    return argc <= 3;
  };
  bool some = false;
  for (int kind = 0; kind < 5; kind++) some |= m.kinds[kind] = argc > 3 && asked(kNames[kind]);
  for (bool& kind : m.kinds) kind |= !some;
  m.bandwidth = read_bandwidth(m.threads);
  m.peak = peak_gflops(m.threads);
  std::printf("%s, %d threads: a plain read %.1f GB/s, multiply-adds of 8 floats %.1f GFLOP/s\n",
              kernels.isa, m.threads, m.bandwidth, m.peak);
  if (asked("decode")) bench_products(kernels, m, 1, "B=1");
  if (asked("batch")) bench_products(kernels, m, 4, "B=4");
  if (asked("batch")) bench_products(kernels, m, 32, "B=32");
  if (asked("prefill")) bench_products(kernels, m, 512, "512 new");
  if (asked("attention")) {
    for (const CacheKind cache : {CacheKind::bf16, CacheKind::i8}) {
      bench_attention(kernels, m, cache, 1, 200, 1);
      bench_attention(kernels, m, cache, 32, 200, 1);
      bench_attention(kernels, m, cache, 1, 512, 512);
      bench_attention(kernels, m, cache, 1, 2048, 256);
    }
  }
}
