// A closed loop of requests over HTTP: each user asks again when its answer is whole and right.
//   load --url http://127.0.0.1:8000/v1/completions --body '{...}' [--header 'Name: value']
//        [--connections 1] [--measure-ms 5000] [--warmup-ms 500] [--stream 0] [--events 64]
// One thread, a kept-alive connection a user. Says what it found as one line of JSON. An answer is
// an error unless it is a whole 200, and of a stream has so many events and ends with [DONE].
#include <fcntl.h>

#include <memory>
#include <vector>

#include "answer.h"
#include "found.h"
#include "net.h"

namespace headrace::bench {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kPatience = 10 * kSecond;  // with answers that are not there when time is over

struct Target {
  std::string host, path;
  int64_t port = 80;
};

// Of `http://host:port/path`.
Target target(const std::string& url) {
  const size_t host = url.find("//") + 2, colon = url.find(':', host), slash = url.find('/', host);
  if (!url.starts_with("http://") || colon == url.npos || slash == url.npos || colon > slash) {
    fail("not http://host:port/path: " + url);
  }
  const std::string port = url.substr(colon + 1, slash - colon - 1);
  return {url.substr(host, colon - host), url.substr(slash), std::atoll(port.c_str())};
}

struct Plan {
  Target target;
  std::string request;  // its bytes
  int64_t connections, measured, warmup, events;
  bool is_stream;
};

Plan plan(const Flags& flags) {
  const Target to = target(flags.text("url"));
  const std::string &body = flags.text("body"), &extra = flags.text("header");
  return {.target = to,
          .request = "POST " + to.path + " HTTP/1.1\r\nhost: " + to.host + ":" +
                     std::to_string(to.port) + "\r\ncontent-type: application/json\r\n" +
                     (extra.empty() ? "" : extra + "\r\n") +
                     "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
          .connections = flags.number("connections"),
          .measured = flags.number("measure-ms") * 1'000'000,
          .warmup = flags.number("warmup-ms") * 1'000'000,
          .events = flags.number("events"),
          .is_stream = flags.number("stream") != 0};
}

struct User {
  Descriptor socket;
  std::string out;
  Answer answer;
  int64_t sent = 0;        // when; 0 while nothing is asked
  int64_t last_event = 0;  // when; 0 before the first
  bool waits_for_room = false;
};

class Load {
 public:
  explicit Load(Plan plan) : plan_(std::move(plan)) {}

  Found run() {
    begin_ = now() + plan_.warmup;
    end_ = begin_ + plan_.measured;
    for (int64_t i = 0; i < plan_.connections; i++) {
      users_.push_back(std::make_unique<User>());
      begin_anew(*users_.back());
    }
    while (num_asking_ > 0 && now() < end_ + kPatience) {
      for (const epoll_event& event : poll_.wait(end_ + kPatience)) {
        serve(*static_cast<User*>(event.data.ptr), event.events);
      }
    }
    for (int64_t i = 0; i < num_asking_; i++) found_.fail("no whole answer in time");
    return std::move(found_);
  }

 private:
  // Connects and asks; a user that cannot is out of the game.
  void begin_anew(User& user) {
    user.socket = Descriptor(checked(socket(AF_INET, SOCK_STREAM, 0), "socket"));
    const sockaddr_in where = address(plan_.target.host, plan_.target.port);
    const auto* to = reinterpret_cast<const sockaddr*>(&where);
    if (connect(*user.socket, to, sizeof where) < 0) return found_.fail("no connection");
    send_at_once(*user.socket);
    checked(fcntl(*user.socket, F_SETFL, O_NONBLOCK), "O_NONBLOCK");
    poll_.add(*user.socket, &user);
    user.waits_for_room = false;
    found_.num_connections++;
    ask(user);
  }

  void ask(User& user) {
    user.answer = Answer(plan_.is_stream);
    user.out = plan_.request;
    user.sent = now();
    user.last_event = 0;
    if (user.sent >= end_) {
      user.sent = 0;
      return;
    }
    num_asking_++;
    put(user);
  }

  void put(User& user) {
    if (!flush(*user.socket, user.out)) return lose(user, "a connection that was lost");
    if (user.out.empty() == user.waits_for_room) {
      user.waits_for_room = !user.out.empty();
      poll_.watch(*user.socket, user.waits_for_room, &user);
    }
  }

  void serve(User& user, uint32_t events) {
    if (events & EPOLLOUT) return put(user);  // what came meanwhile is told again
    char bytes[64 << 10];
    const ssize_t count = recv(*user.socket, bytes, sizeof bytes, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return lose(user, "a connection that was lost");
    if (user.sent == 0) return lose(user, "bytes that nobody asked for");
    const int64_t time = now(), before = user.answer.num_events();
    if (!user.answer.take({bytes, static_cast<size_t>(count)})) {
      return lose(user, "an answer that is not HTTP");
    }
    note_events(user, user.answer.num_events() - before, time);
    if (user.answer.is_whole()) finish(user, time);
  }

  void note_events(User& user, int64_t count, int64_t time) {
    if (count == 0) return;
    const bool is_first = user.last_event == 0;
    const int64_t gap = time - (is_first ? user.sent : user.last_event);
    user.last_event = time;
    if (!is_measured(time)) return;
    found_.num_events += count;
    (is_first ? found_.first_event : found_.gap).add(gap);
    for (int64_t i = 1; i < count; i++) found_.gap.add(0);  // they came together
  }

  void finish(User& user, int64_t time) {
    const std::string fault = user.answer.fault(plan_.events);
    if (!fault.empty()) {
      found_.fail(fault);
    } else if (is_measured(time)) {
      found_.num_requests++;
      found_.latency.add(time - user.sent);
    }
    user.sent = 0;
    num_asking_--;
    if (user.answer.keeps_alive() && user.out.empty()) {
      ask(user);
    } else if (time < end_) {
      begin_anew(user);
    }
  }

  void lose(User& user, const std::string& why) {
    const bool was_asking = user.sent != 0;
    user.sent = 0;
    user.socket = Descriptor();
    if (!was_asking) return;  // the game is over for this user
    num_asking_--;
    found_.fail(why);
    if (now() < end_) begin_anew(user);
  }

  bool is_measured(int64_t time) const { return time >= begin_ && time < end_; }

  const Plan plan_;
  Poll poll_;
  Found found_;
  int64_t begin_ = 0, end_ = 0;
  int64_t num_asking_ = 0;
  std::vector<std::unique_ptr<User>> users_;
};

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  const Flags flags({argv, static_cast<size_t>(argc)}, {{"url", ""},
                                                        {"body", "{}"},
                                                        {"header", ""},
                                                        {"connections", "1"},
                                                        {"measure-ms", "5000"},
                                                        {"warmup-ms", "500"},
                                                        {"stream", "0"},
                                                        {"events", "64"}});
  const Plan it = plan(flags);
  const double spent = processor_seconds();  // on starting
  const int64_t started = now();
  Found found = Load(it).run();
  const double seconds = static_cast<double>(it.measured) / 1e9;
  const double cpu = (processor_seconds() - spent) / (static_cast<double>(now() - started) / 1e9);
  std::printf("%s\n", found.json(seconds, cpu).c_str());
}
