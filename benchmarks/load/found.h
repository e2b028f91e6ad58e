// What a load has found so far, and its JSON.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace headrace::bench {

class Times {
 public:
  void add(int64_t nanoseconds) { all_.push_back(static_cast<double>(nanoseconds) / 1e6); }

  // Milliseconds at the median and the 99th percentile, as JSON; null where there are none.
  std::string json() {
    if (all_.empty()) return R"({"p50":null,"p99":null})";
    return "{\"p50\":" + at(0.5) + ",\"p99\":" + at(0.99) + "}";
  }

 private:
  std::string at(double share) {
    const auto place = static_cast<ptrdiff_t>(share * static_cast<double>(all_.size() - 1) + 0.5);
    std::nth_element(all_.begin(), all_.begin() + place, all_.end());
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.4f", all_[static_cast<size_t>(place)]);
    return digits;
  }

  std::vector<double> all_;
};

// Requests and events count where they ended in the measured time, errors wherever they happened.
struct Found {
  int64_t num_requests = 0, num_events = 0, num_errors = 0, num_connections = 0;
  std::string first_error;
  Times latency, first_event, gap;

  void fail(const std::string& why) {
    if (num_errors++ == 0) first_error = why;
  }

  // `cpu` is the share of one core that the load itself took.
  std::string json(double seconds, double cpu) {
    return "{\"seconds\":" + std::to_string(seconds) +
           ",\"num_requests\":" + std::to_string(num_requests) +
           ",\"num_events\":" + std::to_string(num_events) +
           ",\"num_errors\":" + std::to_string(num_errors) +
           ",\"first_error\":" + (num_errors ? '"' + first_error + '"' : "null") +
           ",\"num_connections\":" + std::to_string(num_connections) +
           ",\"latency_ms\":" + latency.json() + ",\"first_event_ms\":" + first_event.json() +
           ",\"gap_ms\":" + gap.json() + ",\"cpu\":" + std::to_string(cpu) + "}";
  }
};

inline double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace headrace::bench
