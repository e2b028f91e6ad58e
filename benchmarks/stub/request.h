// Reads HTTP/1.1 requests with a Content-Length, and of their JSON two fields, by their spelling.
#pragma once

#include <strings.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::bench {

struct Request {
  std::string_view method, path, body;
  size_t size = 0;         // bytes, head and body
  bool has_length = true;  // else the body is chunked, which is not read here
  bool keep_alive = true;
};

// The value of a header, without the spaces around it; empty when it is not there.
inline std::string_view header(std::string_view head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != head.npos; at = head.find("\r\n", at + 2)) {
    const std::string_view line = head.substr(at + 2, head.find("\r\n", at + 2) - at - 2);
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (strncasecmp(line.data(), name.data(), name.size()) != 0) continue;
    const std::string_view value = line.substr(name.size() + 1);
    const size_t first = value.find_first_not_of(' ');
    return first == value.npos ? "" : value.substr(first, value.find_last_not_of(' ') - first + 1);
  }
  return "";
}

// The first request of `bytes`, once all of it is there.
inline std::optional<Request> first_request(std::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == bytes.npos) return std::nullopt;
  const std::string_view head = bytes.substr(0, end + 2);
  const size_t space = head.find(' '), second = head.find(' ', space + 1);
  Request request;
  request.method = head.substr(0, space);
  request.path = head.substr(space + 1, second - space - 1);
  request.keep_alive = header(head, "connection") != "close";
  request.has_length = header(head, "transfer-encoding").empty();
  const std::string_view digits = header(head, "content-length");
  size_t length = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), length);
  request.size = end + 4 + length;
  if (bytes.size() < request.size) return std::nullopt;
  request.body = bytes.substr(end + 4, length);
  return request;
}

// Whether `"name": true` is in the body. A string that says so has its quotes escaped.
inline bool is_true(std::string_view body, std::string_view name) {
  const std::string key = '"' + std::string(name) + '"';
  for (size_t at = body.find(key); at != body.npos; at = body.find(key, at + 1)) {
    const size_t colon = body.find_first_not_of(" \t\r\n", at + key.size());
    if (colon == body.npos || body[colon] != ':') continue;
    const size_t value = body.find_first_not_of(" \t\r\n", colon + 1);
    if (value != body.npos && body.substr(value).starts_with("true")) return true;
  }
  return false;
}

}  // namespace headrace::bench
