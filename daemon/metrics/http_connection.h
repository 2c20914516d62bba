// One connection of somebody who asks for a page: its request, as it comes, and
// the answer, as it is read. Neither takes longer than its deadline, and
// nothing here blocks, allocates or takes a lock.
//
// It belongs to the responder's thread. The place stays, connections come and
// go.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/metrics/http_request.h"
#include "daemon/metrics/metrics_board.h"

namespace terrace {

class HttpConnection {
 public:
  static constexpr size_t kMostRequestBytes = 8 << 10;
  static constexpr absl::Duration kRequestPatience = absl::Seconds(5);
  static constexpr absl::Duration kAnswerPatience = absl::Seconds(10);
  static constexpr absl::Duration kMetricsPatience = absl::Seconds(1);
  static constexpr absl::Duration kEndPatience = absl::Seconds(1);

  enum class State : uint8_t {
    kNone,     // there is no connection
    kReads,    // the request is not whole
    kAsked,    // it is: an answer is due
    kWaits,    // for metrics, of the question number()
    kWrites,   // the answer is not read yet
    kLingers,  // it is, and the other side is to end
  };

  HttpConnection() = default;
  ~HttpConnection() { End(); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // `fd` does not block, and becomes the connection's. `user`: who has it.
  void Begin(int fd, uid_t user, absl::Time now);
  void End();
  State state() const { return state_; }
  int descriptor() const { return fd_; }
  // What poll(2) is to wait for.
  short events() const;
  uid_t user() const { return user_; }
  absl::Time begun() const { return begun_; }
  absl::Time deadline() const { return deadline_; }

  // Goes on as far as it can. Where the request is wrong or too long, it is
  // answered.
  void Serve(absl::Time now);
  // Of kAsked.
  const HttpRequest& request() const { return request_; }
  // Of kAsked: the answer waits for metrics.
  void AwaitMetrics(uint64_t number, absl::Time now);
  uint64_t number() const { return number_; }

  // Of kAsked and kWaits. `status` is "200 OK"; the parts are copied, as far as
  // there is room, but for `text`, which stays its owner's until
  // TakeText() has it back.
  void Answer(absl::string_view status, absl::string_view page, absl::Time now);
  void AnswerMetrics(MetricsText* text, absl::string_view tail, absl::Time now);
  // The text that is not needed any more; null: none.
  MetricsText* TakeText();

 private:
  static constexpr size_t kMostPageBytes = 4 << 10;

  void Read(absl::Time now);
  void Write(absl::Time now);
  void WriteHead(absl::string_view status, absl::string_view type,
                 size_t page_bytes, absl::Time now);
  void Linger(absl::Time now);

  int fd_ = -1;
  uid_t user_ = 0;
  State state_ = State::kNone;
  absl::Time begun_;
  absl::Time deadline_;
  std::array<char, kMostRequestBytes> in_;
  size_t in_bytes_ = 0;
  HttpRequest request_;
  uint64_t number_ = 0;
  std::array<char, 512> head_;
  size_t head_bytes_ = 0;
  MetricsText* text_ = nullptr;
  std::array<char, kMostPageBytes> page_;  // behind the text
  size_t page_bytes_ = 0;
  bool has_page_ = false;  // HEAD: its size alone is told
  size_t written_ = 0;
};

}  // namespace terrace
