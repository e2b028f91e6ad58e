// A team of threads that walks through the phases of a step together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace headrace {

// One phase: `total` independent units. Every thread owns a contiguous range and steals from others
// when its own is used up. A phase is over when all units are done, not when all threads have come:
// a thread that the system has taken off its core delays the others only if it is inside a unit.
//
// Whatever a thread reads or writes for a phase must happen inside a unit: between two phases the
// others may already be phases ahead.
//
// Team(n): n threads, the caller is one of them. run(job): job(thread) on the caller, and on each
// other thread that comes before the caller is through; returns when all have left it. Exceptions
// are not allowed inside. Threads spin briefly between steps, then sleep. They are started at the
// first run of a process and again after a fork. One run at a time.
class Team {
 public:
  using Unit = void (*)(void* context, int thread, int unit, int next);  // next: -1 when unknown
  explicit Team(int num_threads);                                        // std::invalid_argument
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const;
  // std::system_error when the system gives no more threads.
  void run(const std::function<void(int thread)>& job);

  // Inside a job: every thread calls the same phases in the same order with the same totals.
  // Returns when all units are done, by whomever: the ticks at which this thread found no more of
  // them.
  template <class F>
  uint64_t phase(int thread, int total, F&& unit) {
    return phase(
        thread, total,
        [](void* context, int t, int u, int next) {
          (*static_cast<std::remove_reference_t<F>*>(context))(t, u, next);
        },
        &unit);
  }

  // The first unit of a thread's own range; that of thread + 1 ends it.
  static int first_unit(int total, int num_threads, int thread) {
    return static_cast<int>((static_cast<int64_t>(total) * thread + num_threads - 1) / num_threads);
  }

 private:
  uint64_t phase(int thread, int total, Unit unit, void* context);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
