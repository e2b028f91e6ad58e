// Independent units shared among threads that live for one call. For packing and checking, where a
// unit takes far longer than starting a thread; a model's steps have their Team.
#pragma once

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace headrace {

// unit(thread, index) for every index below total; it must not throw.
template <class F>
void for_each_unit(int num_threads, size_t total, const F& unit) {
  std::atomic<size_t> next{0};
  auto work = [&](int thread) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < total;) unit(thread, i);
  };
  const int wanted = static_cast<int>(std::min<size_t>(static_cast<size_t>(num_threads), total));
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(std::max(wanted, 1)));
  try {
    for (int t = 1; t < wanted; t++) others.emplace_back(work, t);
  } catch (const std::system_error&) {
    // The system gives no more threads: those that run do all the work.
  }
  work(0);
  for (auto& other : others) other.join();
}

}  // namespace headrace
