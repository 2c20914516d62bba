#include "daemon/metrics/http_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kMetrics[] = "text/plain; version=0.0.4; charset=utf-8";

bool IsLater() { return errno == EAGAIN || errno == EINTR; }

// As far as `skipped` bytes of all parts have not passed it.
void AddPart(const char* data, size_t bytes, size_t* skipped, msghdr* message) {
  const size_t passed = std::min(bytes, *skipped);
  *skipped -= passed;
  if (passed == bytes) return;
  message->msg_iov[message->msg_iovlen++] = {const_cast<char*>(data) + passed,
                                             bytes - passed};
}

}  // namespace

void HttpConnection::Begin(int fd, uid_t user, absl::Time now) {
  fd_ = fd;
  user_ = user;
  state_ = State::kReads;
  begun_ = now;
  deadline_ = now + kRequestPatience;
  in_bytes_ = 0;
  written_ = 0;
}

void HttpConnection::End() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  state_ = State::kNone;
}

short HttpConnection::events() const {
  switch (state_) {
    case State::kReads:
    case State::kLingers:
      return POLLIN;
    case State::kWrites:
      return POLLOUT;
    case State::kNone:
    case State::kAsked:
    case State::kWaits:
      break;
  }
  return 0;  // its end is heard all the same
}

void HttpConnection::Serve(absl::Time now) {
  if (state_ == State::kReads) Read(now);
  if (state_ == State::kWrites) Write(now);
  if (state_ == State::kLingers) Linger(now);
}

void HttpConnection::Read(absl::Time now) {
  const ssize_t got =
      recv(fd_, in_.data() + in_bytes_, in_.size() - in_bytes_, MSG_DONTWAIT);
  if (got < 0 && IsLater()) return;
  if (got <= 0) return End();
  in_bytes_ += static_cast<size_t>(got);
  const HttpHead head = ReadHttpHead({in_.data(), in_bytes_}, &request_);
  if (head == HttpHead::kWhole) {
    state_ = State::kAsked;
  } else if (head == HttpHead::kWrong) {
    Answer("400 Bad Request", "the request cannot be read\n", now);
  } else if (in_bytes_ == in_.size()) {
    Answer("431 Request Header Fields Too Large",
           "the request has more than 8 KiB\n", now);
  }
}

void HttpConnection::AwaitMetrics(uint64_t number, absl::Time now) {
  state_ = State::kWaits;
  number_ = number;
  deadline_ = now + kMetricsPatience;
}

void HttpConnection::Answer(absl::string_view status, absl::string_view page,
                            absl::Time now) {
  page_bytes_ = std::min(page.size(), page_.size());
  std::memcpy(page_.data(), page.data(), page_bytes_);
  WriteHead(status, kPlain, page_bytes_, now);
}

void HttpConnection::AnswerMetrics(MetricsText* text, absl::string_view tail,
                                   absl::Time now) {
  text_ = text;
  page_bytes_ = std::min(tail.size(), page_.size());
  std::memcpy(page_.data(), tail.data(), page_bytes_);
  WriteHead("200 OK", kMetrics, text->text.size() + page_bytes_, now);
}

void HttpConnection::WriteHead(absl::string_view status, absl::string_view type,
                               size_t page_bytes, absl::Time now) {
  const int bytes = std::snprintf(
      head_.data(), head_.size(),
      "HTTP/1.1 %.*s\r\nContent-Type: %.*s\r\nContent-Length: %zu\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "%sConnection: close\r\n\r\n",
      static_cast<int>(status.size()), status.data(),
      static_cast<int>(type.size()), type.data(), page_bytes,
      status.substr(0, 3) == "405" ? "Allow: GET, HEAD\r\n" : "");
  head_bytes_ = static_cast<size_t>(bytes);
  has_page_ = request_.method != "HEAD";
  written_ = 0;
  state_ = State::kWrites;
  deadline_ = now + kAnswerPatience;
}

void HttpConnection::Write(absl::Time now) {
  while (true) {
    iovec parts[3] = {};
    msghdr message = {};
    message.msg_iov = parts;
    size_t skipped = written_;
    AddPart(head_.data(), head_bytes_, &skipped, &message);
    if (has_page_) {
      if (text_ != nullptr) {
        AddPart(text_->text.data(), text_->text.size(), &skipped, &message);
      }
      AddPart(page_.data(), page_bytes_, &skipped, &message);
    }
    if (message.msg_iovlen == 0) break;
    const ssize_t sent = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && IsLater()) return;
    if (sent <= 0) return End();
    written_ += static_cast<size_t>(sent);
  }
  // A connection that is closed with bytes that were not read is reset, and
  // the answer may be lost with it.
  shutdown(fd_, SHUT_WR);
  state_ = State::kLingers;
  deadline_ = now + kEndPatience;
}

void HttpConnection::Linger(absl::Time /*now*/) {
  const ssize_t got = recv(fd_, in_.data(), in_.size(), MSG_DONTWAIT);
  if (got > 0 || (got < 0 && IsLater())) return;
  End();
}

MetricsText* HttpConnection::TakeText() {
  const bool is_written = state_ == State::kNone || state_ == State::kLingers;
  return is_written ? std::exchange(text_, nullptr) : nullptr;
}

}  // namespace terrace
