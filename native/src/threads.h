// A team of threads that walks through the phases of a step together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace headrace {

class Team;

// One phase: `total` independent units. Every thread owns a contiguous range and steals from others
// when its own is used up. A phase is over when all units are done, not when all threads have come:
// a thread that the system has taken off its core delays the others only if it is inside a unit.
//
// Team(n): n threads, the caller is one of them. run(job): job(thread) on all, returns when every
// thread has left it; exceptions are not allowed inside. Threads spin briefly between steps, then
// sleep. They are started at the first run of a process and again after a fork.
class Team {
 public:
  using Unit = void (*)(void* context, int thread, int unit, int next);  // next: -1 when unknown
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const;
  void run(const std::function<void(int thread)>& job);

  // Inside a job: every thread calls the same phases in the same order with the same totals. Returns
  // when all units are done, by whomever.
  template <class F>
  void phase(int thread, int total, F&& unit) {
    phase(thread, total,
          [](void* context, int t, int u, int next) { (*static_cast<F*>(context))(t, u, next); },
          &unit);
  }

 private:
  void phase(int thread, int total, Unit unit, void* context);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
