#include "threads.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headrace {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kPhases = 600;
constexpr bool kCanFork = false;  // a child of several threads that starts more dies under TSan
#else
constexpr int kPhases = 4000;
constexpr bool kCanFork = true;
#endif

// Burns time that differs from unit to unit, now and then enough for others to fall asleep.
void dawdle(uint32_t seed) {
  const uint32_t turns = seed % 97 == 0 ? 200000 : seed % 13 == 0 ? 3000 : seed % 50;
  for (volatile uint32_t i = 0; i < turns;) i = i + 1;
}

// Runs phases of random totals. Plain memory: a unit done twice, left out or seen too early is a
// wrong number here, and a race for the sanitizer. False when one is; no checks inside, since a
// child process has nobody to tell but by its exit status.
bool run_random_phases(Team& team, int phases, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> totals(static_cast<size_t>(phases));
  for (int& total : totals) total = random() % 5 ? static_cast<int>(random() % 40) : 0;
  std::vector<std::vector<int>> units;
  for (const int total : totals) units.emplace_back(static_cast<size_t>(total), 0);
  std::atomic<int> early{0};
  team.run([&](int thread) {
    for (int p = 0; p < phases; p++) {
      const size_t place = static_cast<size_t>(p);
      team.phase(thread, totals[place], [&](int, int unit, int next) {
        if (next >= 0 && next != unit + 1) early++;
        if (place > 0) {
          for (const int count : units[place - 1]) early += count != 1;
        }
        dawdle(seed + static_cast<uint32_t>(p * 31 + unit));
        units[place][static_cast<size_t>(unit)]++;
      });
      if ((seed + static_cast<unsigned>(p + thread)) % 29 == 0) dawdle(0);
    }
  });
  for (const auto& counts : units) {
    for (const int count : counts) early += count != 1;
  }
  return early == 0;
}

// body: whether all was well there; an exception ends the child by a signal.
template <class F>
int exit_status_of_child(F&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a deadlock must end
    [&]() noexcept { _exit(body() ? 0 : 1); }();
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("every unit is done once and no phase begins before the last one is over") {
  for (const int threads : {1, 2, 3, 7}) {
    Team team(threads);
    CHECK(run_random_phases(team, kPhases, static_cast<unsigned>(threads)));
  }
}

TEST_CASE("many short runs follow one another") {
  Team team(3);
  for (unsigned i = 0; i < 300; i++) CHECK(run_random_phases(team, 5, i));
}

TEST_CASE("a stranger on the core delays nobody for ever") {
  std::atomic<bool> stop{false};
  std::thread stranger([&] {
    while (!stop) {
    }
  });
  Team team(2);
  CHECK(run_random_phases(team, kPhases / 4, 5));
  stop = true;
  stranger.join();
}

TEST_CASE("a thread that sleeps in a phase wakes at its end") {
  Team team(2);
  for (int round = 0; round < 20; round++) {
    int sum = 0;
    team.run([&](int thread) {
      for (int p = 0; p < 3; p++) {
        team.phase(thread, 1, [&](int, int, int) {
          for (uint32_t i = 0; i < 10; i++) dawdle(0);
          sum++;
        });
      }
    });
    CHECK(sum == 3);
  }
}

TEST_CASE("ranges cover all units in order") {
  for (int total = 0; total < 40; total++) {
    for (int threads = 1; threads < 9; threads++) {
      CHECK(Team::first_unit(total, threads, 0) == 0);
      CHECK(Team::first_unit(total, threads, threads) == total);
      for (int t = 0; t < threads; t++) {
        const int count =
            Team::first_unit(total, threads, t + 1) - Team::first_unit(total, threads, t);
        CHECK(count >= total / threads);
        CHECK(count <= total / threads + 1);
      }
    }
  }
}

TEST_CASE("a team may be destroyed asleep, awake or never started") {
  for (int i = 0; i < 50; i++) {
    Team team(4);
    if (i % 3 == 0) continue;
    CHECK(run_random_phases(team, 2, static_cast<unsigned>(i)));
    if (i % 3 == 1) usleep(2000);
  }
}

TEST_CASE("numbers of threads that make no sense are refused by name") {
  CHECK_THROWS_WITH_AS(Team(0), doctest::Contains("num_threads"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Team(100000), doctest::Contains("num_threads"), std::invalid_argument);
}

TEST_CASE("signals go to the caller and threads carry a name") {
  Team team(2);
  std::atomic<int> blocked{-1};
  std::atomic<bool> entered{false};
  std::string name(16, '\0');
  team.run([&](int thread) {
    if (thread == 0) {
      while (!entered) {
      }
      return;
    }
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    blocked =
        sigismember(&now, SIGTERM) && sigismember(&now, SIGINT) && !sigismember(&now, SIGSEGV);
    pthread_getname_np(pthread_self(), name.data(), name.size());
    entered = true;
  });
  CHECK(blocked == 1);
  CHECK(std::string(name.c_str()) == "headrace-1");
  sigset_t own;
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  CHECK(sigismember(&own, SIGTERM) == 0);
}

#if defined(__linux__)
int policy_of(pthread_t id) {
  int policy = -1;
  sched_param param{};
  REQUIRE(pthread_getschedparam(id, &policy, &param) == 0);
  return policy;
}

// The policies that the members of a team run under, the caller's first.
std::vector<int> policies_of_a_team() {
  std::vector<int> policies(3, -1);
  std::atomic<int> seen{0};
  Team team(3);
  team.run([&](int thread) {
    policies[static_cast<size_t>(thread)] = sched_getscheduler(0);
    seen++;
    while (seen < 3) {
    }
  });
  return policies;
}

TEST_CASE("a team's threads yield to whoever is awake, its caller does not") {
  REQUIRE(policy_of(pthread_self()) == SCHED_OTHER);
  CHECK(policies_of_a_team() == std::vector<int>{SCHED_OTHER, SCHED_BATCH, SCHED_BATCH});
  CHECK(policy_of(pthread_self()) == SCHED_OTHER);
}

TEST_CASE("a team keeps the policy that its caller was given") {
  std::vector<int> policies;
  std::thread caller([&] {
    const sched_param param{};
    REQUIRE(pthread_setschedparam(pthread_self(), SCHED_IDLE, &param) == 0);
    policies = policies_of_a_team();
  });
  caller.join();
  CHECK(policies == std::vector<int>{SCHED_IDLE, SCHED_IDLE, SCHED_IDLE});
}
#endif

TEST_CASE("a child in which something is wrong fails its test") {
  if (!kCanFork) return;
  CHECK(exit_status_of_child([] { return false; }) == 1);
  CHECK(exit_status_of_child([]() -> bool { _exit(7); }) == 7);
}

TEST_CASE("a child goes on with threads of its own, wherever the fork fell") {
  if (!kCanFork) return;
  Team team(3);
  CHECK(run_random_phases(team, 20, 1));
  CHECK(exit_status_of_child([&] { return run_random_phases(team, 50, 2); }) == 0);
  // The fork falls into a run: another thread of the process asks for it.
  std::atomic<bool> stop{false};
  std::atomic<bool> right{true};
  std::thread runner([&] {
    for (unsigned i = 0; !stop; i++) {
      if (!run_random_phases(team, 30, i)) right = false;
    }
  });
  for (int i = 0; i < 10; i++) {
    usleep(300);
    CHECK(exit_status_of_child([&] {
            Team own(2);
            int sum = 0;
            team.run([&](int thread) {
              team.phase(thread, 100, [&](int, int unit, int) {
                if (unit == 99) sum = unit;
              });
            });
            own.run([](int) {});
            return sum == 99;
          }) == 0);
  }
  stop = true;
  runner.join();
  CHECK(right);
}

TEST_CASE("a process exits cleanly while its threads sleep") {
  if (!kCanFork) return;
  for (const int pause : {0, 5000}) {
    CHECK(exit_status_of_child([&] {
            Team* team = new Team(3);  // never destroyed, as at the end of an interpreter
            if (!run_random_phases(*team, 10, 3)) return false;
            usleep(static_cast<useconds_t>(pause));
            quick_exit(0);
          }) == 0);
    CHECK(exit_status_of_child([&] {
            Team team(3);
            return run_random_phases(team, 10, 3);
          }) == 0);
  }
}

}  // namespace
}  // namespace headrace
