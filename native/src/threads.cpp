#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "ticks.h"

namespace headrace {
namespace {

constexpr int kMaxThreads = 1024;
// Between steps a server's own thread wants the core, inside one the others come in microseconds.
constexpr int kIdleSpins = 2000;
constexpr int kPhaseSpins = 2000;
constexpr int kPhaseYields = 20;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts the forks between the first process and this one.
std::atomic<uint64_t> fork_generation{0};

uint64_t process_generation() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  if (registered != 0) throw std::system_error(registered, std::generic_category(), "threads");
  return fork_generation.load(std::memory_order_relaxed);
}

// A number together with the phase that it belongs to. As the phase is part of the word, a thread
// that comes late finds that its phase is over and can take nothing of a later one, and nobody has
// to reset the numbers between phases.
class PhaseCount {
 public:
  static constexpr uint64_t make(uint32_t phase, uint32_t count) {
    return static_cast<uint64_t>(phase) << 32 | count;
  }
  static constexpr uint32_t phase_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static constexpr uint32_t count_of(uint64_t word) { return static_cast<uint32_t>(word); }

  void clear() { word_.store(0, std::memory_order_relaxed); }
  uint64_t load(std::memory_order order) const { return word_.load(order); }

  // The next of `limit` numbers, or -1 when they are used up or the phase is over. Which thread
  // gets a number is all that this decides, so it orders no other memory.
  int take(uint32_t phase, uint32_t limit) {
    uint64_t word = word_.load(std::memory_order_relaxed);
    for (;;) {
      if (phase_of(word) > phase) return -1;
      const uint32_t count = phase_of(word) == phase ? count_of(word) : 0;
      if (count >= limit) return -1;
      if (word_.compare_exchange_weak(word, make(phase, count + 1), std::memory_order_relaxed)) {
        return static_cast<int>(count);
      }
    }
  }

  // The phase cannot be over before this is added. Publishes what the thread wrote in its units.
  uint32_t add(uint32_t phase, uint32_t amount) {
    uint64_t word = word_.load(std::memory_order_relaxed);
    for (;;) {
      const uint32_t count = (phase_of(word) == phase ? count_of(word) : 0) + amount;
      if (word_.compare_exchange_weak(word, make(phase, count), std::memory_order_seq_cst,
                                      std::memory_order_relaxed)) {
        return count;
      }
    }
  }

 private:
  std::atomic<uint64_t> word_{0};
};

enum : uint32_t { kIdle, kOffered, kInside, kStop };

}  // namespace

struct Team::State {
  // What each thread has for itself, on cache lines of its own.
  struct alignas(128) Member {
    PhaseCount taken;  // of this thread's range
    alignas(64) std::atomic<uint32_t> state{kIdle};
    uint32_t phase = 0;  // the last one that it entered
    int index = 0;
    State* team = nullptr;
    pthread_t id{};
  };

  explicit State(int size) : members(static_cast<size_t>(size)) {
    for (int t = 0; t < size; t++) {
      members[static_cast<size_t>(t)].index = t;
      members[static_cast<size_t>(t)].team = this;
    }
  }

  std::vector<Member> members;
  size_t num_started = 1;  // the caller among them
  uint64_t generation = 0;
  const std::function<void(int)>* job = nullptr;

  alignas(64) PhaseCount done;
  // Threads that sleep until a phase is over, and the word they sleep on.
  alignas(64) std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> wakes{0};

  void start();
  void stop();
  void reset();
  void offer();
  void close();
  void work(Member&);
  bool is_over(uint64_t word, uint32_t phase, uint32_t total) const;
  void wait(uint32_t phase, uint32_t total);
  void wake();
};

namespace {

// Signals are for the process's own threads. Those that a fault raises stay: blocked, they would
// kill the process without a word from its handlers.
sigset_t signals_to_block() {
  sigset_t set;
  sigfillset(&set);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&set, fault);
  }
  return set;
}

void name_thread([[maybe_unused]] pthread_t id, [[maybe_unused]] int index) {
#if defined(__linux__)
  pthread_setname_np(id, ("headrace-" + std::to_string(index)).c_str());
#endif
}

// A batch thread that wakes does not preempt: the server's event loops, which tell the team to
// begin, finish their turn first. A thread that the process runs under another policy keeps it.
void yield_to_the_server([[maybe_unused]] pthread_t id) {
#if defined(__linux__)
  int policy = 0;
  sched_param param{};
  if (pthread_getschedparam(id, &policy, &param) != 0 || policy != SCHED_OTHER) return;
  // Where a sandbox refuses, the thread computes the same under the usual policy.
  (void)pthread_setschedparam(id, SCHED_BATCH, &param);
#endif
}

}  // namespace

void Team::State::reset() {
  for (Member& member : members) {
    member.taken.clear();
    member.phase = 0;
  }
  done.clear();
}

// After a fork the other threads are gone, wherever they were: their words start afresh and their
// ids are forgotten.
void Team::State::start() {
  const uint64_t now = process_generation();
  if (num_started == members.size() && generation == now) return;
  generation = now;
  num_started = 1;
  for (Member& member : members) member.state.store(kIdle, std::memory_order_relaxed);
  sleepers.store(0, std::memory_order_relaxed);
  const sigset_t blocked = signals_to_block();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  int error = 0;
  for (; num_started < members.size(); num_started++) {
    Member& member = members[num_started];
    error = pthread_create(
        &member.id, nullptr,
        [](void* p) -> void* {
          Member& self = *static_cast<Member*>(p);
          self.team->work(self);
          return nullptr;
        },
        &member);
    if (error != 0) break;
    name_thread(member.id, member.index);
    yield_to_the_server(member.id);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return;
  stop();
  throw std::system_error(error, std::generic_category(), "threads: cannot start another");
}

void Team::State::stop() {
  if (generation == process_generation()) {
    for (size_t t = 1; t < num_started; t++) {
      members[t].state.store(kStop, std::memory_order_seq_cst);
      members[t].state.notify_one();
    }
    for (size_t t = 1; t < num_started; t++) pthread_join(members[t].id, nullptr);
  }
  num_started = 1;
}

void Team::State::work(Member& self) {
  for (;;) {
    for (int i = 0; i < kIdleSpins && self.state.load(std::memory_order_relaxed) == kIdle; i++) {
      pause();
    }
    self.state.wait(kIdle, std::memory_order_acquire);
    uint32_t offered = kOffered;
    if (self.state.compare_exchange_strong(offered, kInside, std::memory_order_acq_rel)) {
      (*job)(self.index);
      self.state.store(kIdle, std::memory_order_seq_cst);
      self.state.notify_one();
    } else if (offered == kStop) {
      return;
    }
  }
}

void Team::State::offer() {
  for (size_t t = 1; t < num_started; t++) {
    members[t].state.store(kOffered, std::memory_order_seq_cst);
    members[t].state.notify_one();
  }
}

// Threads that have not come yet need not come any more; the others are waited for.
void Team::State::close() {
  for (size_t t = 1; t < num_started; t++) {
    std::atomic<uint32_t>& state = members[t].state;
    uint32_t seen = kOffered;
    if (state.compare_exchange_strong(seen, kIdle, std::memory_order_acq_rel)) continue;
    for (int i = 0; i < kPhaseSpins && state.load(std::memory_order_acquire) == kInside; i++)
      pause();
    state.wait(kInside, std::memory_order_acquire);
  }
}

bool Team::State::is_over(uint64_t word, uint32_t phase, uint32_t total) const {
  const uint32_t at = PhaseCount::phase_of(word);
  return at > phase || (at == phase && PhaseCount::count_of(word) == total);
}

// Sleeping at last gives the core to the thread that is waited for, if nobody else has one for it.
void Team::State::wait(uint32_t phase, uint32_t total) {
  for (int i = 0; i < kPhaseSpins + kPhaseYields; i++) {
    if (is_over(done.load(std::memory_order_acquire), phase, total)) return;
    if (i < kPhaseSpins) {
      pause();
    } else {
      sched_yield();
    }
  }
  // Either the last unit's thread sees this sleeper or this thread sees that the phase is over: all
  // four accesses are in one order.
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = wakes.load(std::memory_order_seq_cst);
    if (is_over(done.load(std::memory_order_seq_cst), phase, total)) break;
    wakes.wait(seen, std::memory_order_seq_cst);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Team::State::wake() {
  if (sleepers.load(std::memory_order_seq_cst) == 0) return;
  wakes.fetch_add(1, std::memory_order_seq_cst);
  wakes.notify_all();
}

Team::Team(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads: " + std::to_string(num_threads) +
                                " is not between 1 and " + std::to_string(kMaxThreads));
  }
  state_ = std::make_unique<State>(num_threads);
}

Team::~Team() { state_->stop(); }

int Team::size() const { return static_cast<int>(state_->members.size()); }

void Team::run(const std::function<void(int thread)>& job) {
  State& state = *state_;
  if (state.members.size() == 1) return job(0);
  state.start();
  state.reset();
  state.job = &job;
  state.offer();
  job(0);
  state.close();
}

uint64_t Team::phase(int thread, int total, Unit unit, void* context) {
  State& state = *state_;
  const int size = static_cast<int>(state.members.size());
  if (size == 1) {
    for (int u = 0; u < total; u++) unit(context, 0, u, u + 1 < total ? u + 1 : -1);
    return ticks();
  }
  if (total <= 0) return ticks();
  const uint32_t phase = ++state.members[static_cast<size_t>(thread)].phase;
  uint32_t did = 0;
  for (int k = 0; k < size; k++) {
    const int owner = thread + k < size ? thread + k : thread + k - size;
    const int first = first_unit(total, size, owner), end = first_unit(total, size, owner + 1);
    PhaseCount& taken = state.members[static_cast<size_t>(owner)].taken;
    for (int i; (i = taken.take(phase, static_cast<uint32_t>(end - first))) >= 0; did++) {
      unit(context, thread, first + i, first + i + 1 < end ? first + i + 1 : -1);
    }
  }
  const uint64_t idle = ticks();
  const uint32_t all = static_cast<uint32_t>(total);
  if (did && state.done.add(phase, did) == all) {
    state.wake();
  } else {
    state.wait(phase, all);
  }
  return idle;
}

}  // namespace headrace
