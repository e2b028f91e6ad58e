// A server of OpenAI's API whose model costs nothing, so that what stands before it is measured.
//   stub [--port 0] [--events 64] [--gap-us 1000]
// Answers completions, chat or not, with one and the same text: whole at once, or as a stream of
// `events` tokens `gap-us` apart by a fixed timetable. One thread; SIGTERM ends it.
#include <sys/signalfd.h>

#include <csignal>
#include <memory>
#include <set>
#include <unordered_map>

#include "answers.h"
#include "net.h"
#include "request.h"

namespace headrace::bench {
namespace {

constexpr size_t kMostBytes = 16 << 20;  // of a request

struct Connection {
  Descriptor socket;
  std::string in, out;
  const Answers* answers = nullptr;  // of the stream that runs
  int64_t events_left = 0;
  int64_t due = 0;  // when its next event is
  bool wants_usage = false;
  bool keep_alive = true;
  bool waits_for_room = false;

  bool is_streaming() const { return answers != nullptr; }
};

class Stub {
 public:
  Stub(int64_t port, int64_t num_events, int64_t gap)
      : num_events_(num_events), gap_(gap), chat_(true, num_events), text_(false, num_events) {
    listen_for_signals();
    listen_on(port);  // and say so: from then on a signal may come
  }

  void run() {
    for (;;) {
      for (const epoll_event& event : poll_.wait(due_.empty() ? -1 : due_.begin()->first)) {
        if (event.data.ptr == &signals_) return;
        if (event.data.ptr == &listener_) {
          accept_all();
        } else {
          serve(static_cast<Connection*>(event.data.ptr), event.events);
        }
      }
      send_due();
    }
  }

 private:
  void listen_on(int64_t port) {
    listener_ = Descriptor(checked(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket"));
    const int yes = 1;
    setsockopt(*listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in where = address("127.0.0.1", port);
    socklen_t size = sizeof where;
    checked(bind(*listener_, reinterpret_cast<sockaddr*>(&where), size), "bind");
    checked(listen(*listener_, SOMAXCONN), "listen");
    getsockname(*listener_, reinterpret_cast<sockaddr*>(&where), &size);
    std::printf("http://127.0.0.1:%d\n", ntohs(where.sin_port));
    std::fflush(stdout);
    poll_.add(*listener_, &listener_);
  }

  void listen_for_signals() {
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, nullptr);
    signals_ = Descriptor(checked(signalfd(-1, &ends, SFD_NONBLOCK), "signalfd"));
    poll_.add(*signals_, &signals_);
  }

  void accept_all() {
    for (;;) {
      const int accepted = accept4(*listener_, nullptr, nullptr, SOCK_NONBLOCK);
      if (accepted < 0) return;
      send_at_once(accepted);
      auto connection = std::make_unique<Connection>();
      connection->socket = Descriptor(accepted);
      poll_.add(accepted, connection.get());
      connections_.emplace(connection.get(), std::move(connection));
    }
  }

  void serve(Connection* it, uint32_t events) {
    if ((events & ~uint32_t{EPOLLOUT}) && !read(*it)) return drop(it);
    answer(*it);
    put(it);
  }

  // False when the client has left, or sends without end.
  static bool read(Connection& it) {
    char bytes[64 << 10];
    const ssize_t count = recv(*it.socket, bytes, sizeof bytes, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    it.in.append(bytes, static_cast<size_t>(count));
    return count > 0 && it.in.size() <= kMostBytes;
  }

  // Answers every request that is there; what comes during a stream waits for its end.
  void answer(Connection& it) {
    while (!it.is_streaming() && it.keep_alive) {
      const auto request = first_request(it.in);
      if (!request) return;
      it.keep_alive = request->keep_alive && request->has_length;
      route(it, *request);
      it.in.erase(0, request->size);
    }
  }

  void route(Connection& it, const Request& request) {
    const bool is_chat = request.path == "/v1/chat/completions";
    if (!request.has_length) {
      it.out += whole("411 Length Required", R"({"error":{"message":"a length is needed"}})");
    } else if (request.path == "/health") {
      it.out += whole("200 OK", R"({"status":"ok"})");
    } else if (request.path == "/v1/models") {
      it.out += whole("200 OK", R"({"object":"list","data":[{"id":"stub","object":"model"}]})");
    } else if (request.method != "POST" || !(is_chat || request.path == "/v1/completions")) {
      it.out += whole("404 Not Found", R"({"error":{"message":"there is no such page"}})");
    } else {
      complete(it, is_chat ? chat_ : text_, request.body);
    }
  }

  void complete(Connection& it, const Answers& answers, std::string_view body) {
    if (!is_true(body, "stream")) {
      it.out += answers.full;
      return;
    }
    it.answers = &answers;
    it.events_left = num_events_;
    it.wants_usage = is_true(body, "include_usage");
    it.due = now();
    it.out += answers.begin;
    due_.emplace(it.due, &it);
    continue_stream(it);
  }

  // Adds the event that is due, and the stream's end after its last one.
  void continue_stream(Connection& it) {
    due_.erase({it.due, &it});
    it.events_left--;
    if (it.events_left > 0) {
      it.out += it.answers->token;
      it.due += gap_;
      due_.emplace(it.due, &it);
      return;
    }
    it.out += it.answers->last_token;
    if (it.wants_usage) it.out += it.answers->usage_event;
    it.out += it.answers->end;
    it.answers = nullptr;
  }

  void send_due() {
    const int64_t time = now();
    while (!due_.empty() && due_.begin()->first <= time) {
      Connection* it = due_.begin()->second;
      continue_stream(*it);
      answer(*it);
      put(it);
    }
  }

  void put(Connection* it) {
    const bool is_there = flush(*it->socket, it->out);
    const bool is_done = !it->keep_alive && !it->is_streaming() && it->out.empty();
    if (!is_there || is_done) return drop(it);
    if (it->out.empty() == it->waits_for_room) {
      it->waits_for_room = !it->out.empty();
      poll_.watch(*it->socket, it->waits_for_room, it);
    }
  }

  void drop(Connection* it) {
    due_.erase({it->due, it});
    connections_.erase(it);
  }

  const int64_t num_events_, gap_;
  const Answers chat_, text_;
  Poll poll_;
  Descriptor listener_, signals_;
  std::set<std::pair<int64_t, Connection*>> due_;  // of every stream that runs
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
};

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  const Flags flags({argv, static_cast<size_t>(argc)},
                    {{"port", "0"}, {"events", "64"}, {"gap-us", "1000"}});
  if (flags.number("events") == 0) fail("--events must be at least 1");
  Stub(flags.number("port"), flags.number("events"), flags.number("gap-us") * 1000).run();
}
