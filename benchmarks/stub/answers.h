// The bytes of every answer, made once. Knows no sockets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace headrace::bench {

inline std::string whole(std::string_view status, std::string_view json) {
  return "HTTP/1.1 " + std::string(status) + "\r\ncontent-type: application/json\r\n" +
         "content-length: " + std::to_string(json.size()) + "\r\n\r\n" + std::string(json);
}

inline std::string chunk(std::string_view bytes) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + std::string(bytes) + "\r\n";
}

// The answers of one API, chat or plain completions.
class Answers {
 public:
  Answers(bool is_chat, int64_t num_events) : is_chat_(is_chat) {
    usage_ = "{\"prompt_tokens\":7,\"completion_tokens\":" + std::to_string(num_events) +
             ",\"total_tokens\":" + std::to_string(num_events + 7) + "}";
    const std::string text =
        is_chat ? R"("message":{"role":"assistant","content":"mill"})" : R"("text":"mill")";
    full = whole("200 OK", head(is_chat ? "chat.completion" : "text_completion") +
                               R"("choices":[{"index":0,)" + text +
                               R"(,"finish_reason":"length"}],"usage":)" + usage_ + "}");
    begin =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    token = chunk(event("null"));
    last_token = chunk(event("\"length\""));
    usage_event = chunk("data: " + event_head() + R"("choices":[],"usage":)" + usage_ + "}\n\n");
    end = chunk("data: [DONE]\n\n") + chunk("");
  }

  std::string full, begin, token, last_token, usage_event, end;

 private:
  static std::string head(std::string_view object) {
    return R"({"id":"stub-0123456789abcdef","object":")" + std::string(object) +
           R"(","created":1700000000,"model":"stub",)";
  }

  std::string event_head() const {
    return head(is_chat_ ? "chat.completion.chunk" : "text_completion");
  }

  std::string event(std::string_view finish_reason) const {
    const std::string text = is_chat_ ? R"("delta":{"content":" mill"})" : R"("text":" mill")";
    return "data: " + event_head() + R"("choices":[{"index":0,)" + text + R"(,"finish_reason":)" +
           std::string(finish_reason) + "}]}\n\n";
  }

  bool is_chat_;
  std::string usage_;
};

}  // namespace headrace::bench
