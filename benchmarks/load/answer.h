// Reads one HTTP/1.1 answer as it arrives, and of a stream counts the events. Knows no sockets.
#pragma once

#include <strings.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::bench {

class Answer {
 public:
  explicit Answer(bool is_stream = false) : is_stream_(is_stream) {}

  // Takes what came, as far as it is of this answer; false when it is none or says too much.
  bool take(std::string_view bytes) {
    while (!bytes.empty() && state_ != State::kWhole) {
      if (state_ == State::kBody) {
        take_body(bytes);
      } else if (take_line(bytes)) {
        if (!read_line()) return false;
        line_.clear();
      }
    }
    return bytes.empty();
  }

  bool is_whole() const { return state_ == State::kWhole; }
  bool keeps_alive() const { return keeps_alive_; }
  int64_t num_events() const { return num_events_; }  // [DONE] not among them

  // What is wrong with an answer that is whole; empty when nothing is.
  std::string fault(int64_t expected_events) const {
    if (status_ != 200) return "status " + std::to_string(status_);
    if (!is_stream_) return num_bytes_ > 0 ? "" : "an empty answer";
    if (has_error_) return "an error event";
    if (!is_done_ || !event_.empty()) return "a stream that does not end with [DONE]";
    if (num_events_ == expected_events) return "";
    return std::to_string(num_events_) + " events instead of " + std::to_string(expected_events);
  }

 private:
  enum class State { kStatus, kHeader, kSize, kBody, kChunkEnd, kTrailer, kWhole };

  // Moves bytes up to the end of a line; whether that was among them.
  bool take_line(std::string_view& bytes) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    bytes.remove_prefix(end == bytes.npos ? bytes.size() : end + 1);
    if (end == bytes.npos) return false;
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
  }

  void take_body(std::string_view& bytes) {
    const std::string_view piece = bytes.substr(0, left_);
    bytes.remove_prefix(piece.size());
    left_ -= piece.size();
    num_bytes_ += piece.size();
    if (is_stream_ && status_ == 200) read_events(piece);
    if (left_ == 0) state_ = is_chunked_ ? State::kChunkEnd : State::kWhole;
  }

  bool read_line() {
    switch (state_) {
      case State::kStatus:
        state_ = State::kHeader;
        return line_.starts_with("HTTP/1.1 ") && number(line_.substr(9, 3), 10, status_);
      case State::kHeader:
        return line_.empty() ? begin_body() : read_header();
      case State::kSize:
        if (!number(line_, 16, left_)) return false;
        state_ = left_ == 0 ? State::kTrailer : State::kBody;
        return true;
      case State::kChunkEnd:
        state_ = State::kSize;
        return line_.empty();
      case State::kTrailer:
        if (line_.empty()) state_ = State::kWhole;
        return true;
      default:
        return false;
    }
  }

  bool read_header() {
    const size_t colon = line_.find(':');
    if (colon == line_.npos) return false;
    const std::string name = line_.substr(0, colon);
    const std::string value =
        line_.substr(std::min(line_.find_first_not_of(' ', colon + 1), line_.size()));
    if (is_same(name, "transfer-encoding")) is_chunked_ = is_same(value, "chunked");
    if (is_same(name, "connection")) keeps_alive_ = !is_same(value, "close");
    if (!is_same(name, "content-length")) return true;
    has_length_ = true;
    return number(value, 10, left_);
  }

  bool begin_body() {
    state_ = is_chunked_ ? State::kSize : left_ == 0 ? State::kWhole : State::kBody;
    return is_chunked_ || has_length_;
  }

  void read_events(std::string_view piece) {
    event_.append(piece);
    for (size_t end = event_.find("\n\n"); end != event_.npos; end = event_.find("\n\n")) {
      read_event(std::string_view(event_).substr(0, end));
      event_.erase(0, end + 2);
    }
  }

  void read_event(std::string_view event) {
    if (!event.starts_with("data: ")) return;  // a comment, which keeps a connection open
    const std::string_view data = event.substr(6);
    if (data.starts_with("{\"error\"")) {
      has_error_ = true;
    } else if (data == "[DONE]") {
      is_done_ = true;
    } else {
      is_done_ = false;  // it was not the end
      num_events_++;
    }
  }

  static bool is_same(std::string_view a, std::string_view b) {
    return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
  }

  template <class T>
  static bool number(std::string_view digits, int base, T& value) {
    const auto [stopped, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    return error == std::errc() && stopped == digits.data() + digits.size();
  }

  bool is_stream_;
  State state_ = State::kStatus;
  std::string line_, event_;  // as far as they have come
  int status_ = 0;
  size_t left_ = 0, num_bytes_ = 0;
  int64_t num_events_ = 0;
  bool is_chunked_ = false, has_length_ = false, keeps_alive_ = true;
  bool is_done_ = false, has_error_ = false;
};

}  // namespace headrace::bench
