// What the stub and the load share: flags, time, sockets, and waiting for many of them at once.
// Linux only. Whatever is not expected of the system ends the program with a sentence.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::bench {

[[noreturn]] inline void fail(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::exit(1);
}

inline int checked(int result, const char* what) {
  if (result < 0) fail(std::string(what) + ": " + std::strerror(errno));
  return result;
}

// Nanoseconds on the monotonic clock.
inline int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// `--name value` for each name that is known; one that is not ends the program.
class Flags {
 public:
  Flags(std::span<char*> arguments, std::map<std::string, std::string> values)
      : values_(std::move(values)) {
    for (size_t i = 1; i < arguments.size(); i += 2) {
      const std::string name = arguments[i];
      const auto known = name.starts_with("--") ? values_.find(name.substr(2)) : values_.end();
      if (known == values_.end()) fail("there is no flag " + name);
      if (i + 1 == arguments.size()) fail(name + " lacks its value");
      known->second = arguments[i + 1];
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }

  int64_t number(const std::string& name) const {
    const std::string& digits = text(name);
    const char* end = digits.data() + digits.size();
    int64_t value = -1;
    const auto [stopped, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc() || stopped != end || value < 0) {
      fail("--" + name + " takes a whole number that is not negative, not " + digits);
    }
    return value;
  }

 private:
  std::map<std::string, std::string> values_;
};

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }

  int operator*() const { return number_; }

 private:
  int number_ = -1;
};

inline sockaddr_in address(const std::string& host, int64_t port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &where.sin_addr) != 1) fail(host + " is no IPv4 address");
  return where;
}

inline void send_at_once(int socket) {
  const int yes = 1;
  checked(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), "TCP_NODELAY");
}

// Sends what the socket takes of `bytes` and removes it from them; false when the peer is gone.
inline bool flush(int socket, std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t taken = send(socket, &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0 && errno != EAGAIN) return false;
    if (taken < 0) break;
    sent += static_cast<size_t>(taken);
  }
  bytes.erase(0, sent);
  return true;
}

// Waits until one of many sockets is ready; each has an owner that comes back with its events.
class Poll {
 public:
  Poll() : poll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
    prctl(PR_SET_TIMERSLACK, 1UL);  // else the kernel may wake us 50 us late
  }

  void add(int socket, void* owner) { control(EPOLL_CTL_ADD, socket, EPOLLIN, owner); }

  void watch(int socket, bool for_room, void* owner) {
    control(EPOLL_CTL_MOD, socket, EPOLLIN | (for_room ? uint32_t{EPOLLOUT} : 0), owner);
  }

  // What is ready by `until`, in nanoseconds on the monotonic clock; without a time limit for -1.
  std::span<epoll_event> wait(int64_t until = -1) {
    const int64_t left = until < 0 ? 0 : std::max<int64_t>(0, until - now());
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    const int count = epoll_pwait2(*poll_, events_.data(), static_cast<int>(events_.size()),
                                   until < 0 ? nullptr : &timeout, nullptr);
    if (count < 0 && errno == EINTR) return {};
    return {events_.data(), static_cast<size_t>(checked(count, "epoll_pwait2"))};
  }

 private:
  void control(int operation, int socket, uint32_t events, void* owner) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = owner;
    checked(epoll_ctl(*poll_, operation, socket, &event), "epoll_ctl");
  }

  Descriptor poll_;
  std::array<epoll_event, 256> events_{};
};

}  // namespace headrace::bench
