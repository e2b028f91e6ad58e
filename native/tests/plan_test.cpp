#include "plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "threads.h"

namespace headrace {
namespace {

constexpr size_t kItems = 4096, kPartials = 4096;

struct Fixture {
  PlanShape shape;
  std::vector<Segment> segments;
  std::vector<float> partials;
  AttentionPlan plan;

  Fixture(PlanShape shape, int window, const std::vector<std::pair<int, int>>& computed_and_new)
      : shape(shape), partials(kPartials), plan(shape, window, kItems, kPartials) {
    int token = 0;
    for (const auto& [computed, count] : computed_and_new) {
      segments.push_back({nullptr, token, count, computed, token});
      token += count;
    }
  }

  int group() const { return shape.num_heads / shape.num_kv_heads; }

  // How often each row (token, head) is given each chunk.
  std::map<std::tuple<int, int, int>, int> covered() const {
    std::map<std::tuple<int, int, int>, int> times;
    for (const AttentionWork& work : plan.items()) {
      const AttentionItem& item = work.item;
      for (int r = item.first_row; r < item.first_row + item.num_rows; r++) {
        for (int c = item.first_chunk; c < item.last_chunk; c++) {
          times[{item.first_token + r / group(), item.kv_head * group() + r % group(), c}]++;
        }
      }
    }
    return times;
  }

  // What each thread finds in its own range.
  std::vector<int64_t> shares() const {
    std::vector<int64_t> costs;
    const int total = static_cast<int>(plan.items().size());
    for (int t = 0; t < shape.num_threads; t++) {
      int64_t cost = 0;
      for (int i = Team::first_unit(total, shape.num_threads, t);
           i < Team::first_unit(total, shape.num_threads, t + 1); i++) {
        cost += plan.items()[static_cast<size_t>(i)].cost;
      }
      costs.push_back(cost);
    }
    return costs;
  }
};

TEST_CASE("every row is given each chunk that it sees once, however the batch is cut") {
  std::mt19937 random(3);
  for (int round = 0; round < 60; round++) {
    const int kv_heads = 1 + static_cast<int>(random() % 3);
    const PlanShape shape{kv_heads * (1 + static_cast<int>(random() % 4)), kv_heads, 1,
                          1 + static_cast<int>(random() % 4)};
    const int window = random() % 2 ? 0 : 1 + static_cast<int>(random() % 700);
    std::vector<std::pair<int, int>> sequences(1 + random() % 6);
    for (auto& [computed, count] : sequences) {
      computed = static_cast<int>(random() % 3000);
      count = random() % 4 ? 1 : 1 + static_cast<int>(random() % 40);
    }
    Fixture f(shape, window, sequences);
    f.plan.build(f.segments, f.partials.data(), round % 5 == 0 && sequences.size() == 1);
    const auto covered = f.covered();
    for (const Segment& s : f.segments) {
      for (int t = 0; t < s.num_tokens; t++) {
        const int position = s.num_computed + t;
        const int oldest = window ? std::max(0, position - window + 1) : 0;
        for (int c = oldest / kChunk; c <= position / kChunk; c++) {
          for (int h = 0; h < shape.num_heads; h++) {
            const auto found = covered.find({s.first_row + t, h, c});
            REQUIRE(found != covered.end());
            REQUIRE(found->second == 1);
          }
        }
      }
    }
  }
}

TEST_CASE("a long sequence among short ones leaves no thread idle") {
  for (const int kv_heads : {1, 2, 3, 8}) {
    for (const int short_ones : {1, 7, 31, 60}) {
      for (const int threads : {2, 4}) {
        CAPTURE(kv_heads);
        CAPTURE(short_ones);
        CAPTURE(threads);
        std::vector<std::pair<int, int>> sequences{{3999, 1}};
        for (int i = 0; i < short_ones; i++) sequences.emplace_back(49, 1);
        Fixture f({kv_heads * 3, kv_heads, 1, threads}, 0, sequences);
        f.plan.build(f.segments, f.partials.data(), false);
        const auto shares = f.shares();
        const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
        int64_t dearest = 0;
        for (const AttentionWork& work : f.plan.items()) dearest = std::max(dearest, work.cost);
        // An item that is begun last keeps the others waiting by its cost at most.
        CHECK(dearest <= total / (2 * threads));
        // The dearest come first, so stealing has the cheap ones left to even out.
        CHECK(*std::min_element(shares.begin(), shares.end()) > 0);
      }
    }
  }
}

TEST_CASE("a short sequence costs what it holds, not a whole chunk") {
  Fixture f({2, 1, 1, 1}, 0, {{49, 1}, {255, 1}});
  f.plan.build(f.segments, f.partials.data(), false);
  REQUIRE(f.plan.items().size() == 2);
  CHECK(f.plan.items()[0].cost == 4 * f.plan.items()[1].cost);
}

}  // namespace
}  // namespace headrace
