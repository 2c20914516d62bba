// Tells whoever asks how the daemon is, over HTTP/1.1, from a thread of its
// own, terrace-metrics:
//
//   /metrics   the numbers, in Prometheus's text format
//   /healthz   200: the process serves this
//   /readyz    200: jobs are served; 503: it starts, drains or ends, or loops
//              have stopped, each of which is named
//
// The thread takes no lock that a watched one can hold, and allocates nothing:
// what stopped, wherever it did, is told. A slow reader or writer has a place,
// of which there are few, until its deadline, or until all are taken: then the
// user who has most of them loses the oldest one, which is answered before as
// far as its request has come. So nobody is kept out by another user's
// connections, nor by others at a port, who are one user, as long as a request
// comes with its connection.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/metrics/http_connection.h"
#include "daemon/metrics/metrics_board.h"
#include "daemon/metrics/metrics_listener.h"
#include "daemon/watch/loop_table.h"
#include "daemon/watch/loop_watch.h"

namespace terrace {

class MetricsResponder {
 public:
  static constexpr size_t kMostConnections = 16;

  // All outlive the responder. `heartbeat` is its own. Errors are
  // MetricsListener::Make's; ResourceExhausted: there is no thread.
  struct Parts {
    MetricsBoard* board = nullptr;
    const LoopTable* loops = nullptr;
    const LoopWatch* watch = nullptr;
    Heartbeat* heartbeat = nullptr;
  };
  static absl::StatusOr<std::unique_ptr<MetricsResponder>> Start(
      MetricsListener listener, const Parts& parts);
  // Ends the connections and waits for its thread.
  ~MetricsResponder();
  MetricsResponder(const MetricsResponder&) = delete;
  MetricsResponder& operator=(const MetricsResponder&) = delete;

  const MetricsListener& listener() const { return listener_; }

 private:
  MetricsResponder(MetricsListener listener, const Parts& parts);

  void Run();
  void Turn();
  absl::Time Next() const;
  void Accept(absl::Time now);
  // A free place, or one that the user who has most of them loses.
  HttpConnection& PlaceFor(uid_t user, absl::Time now);
  HttpConnection& Loser(uid_t user);
  // What can be answered now is.
  void Hurry(HttpConnection& connection, absl::Time now);
  void Serve(HttpConnection& connection, short events, absl::Time now);
  void Answer(HttpConnection& connection, absl::Time now);
  void AnswerReady(HttpConnection& connection, absl::Time now);
  // Those that wait, where there is a text for them or their time is over.
  void AnswerMetrics(absl::Time now);
  // By the newest text that there is.
  void AnswerMetrics(HttpConnection& connection, absl::Time now);
  void TakeNewest();
  void TakeBack(HttpConnection& connection);

  const MetricsListener listener_;
  const Parts parts_;
  std::array<HttpConnection, kMostConnections> connections_;
  MetricsText* newest_ = nullptr;
  absl::Time accepts_again_ = absl::InfiniteFuture();
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace terrace
