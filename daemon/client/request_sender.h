// How what a process's threads post gets to the daemon: the thread that posts
// takes what the inbox has, and writes it into the ring. What finds no room
// there, or cannot be sent at all, is left to the relay. While there is no
// daemon all stays in the inbox.
//
// Thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/client/dues.h"
#include "daemon/client/request_log.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/message_channel.h"
#include "runtime/messages/inbox.h"

namespace terrace {

// A message of the inbox as it is sent: its deadline is by the wall clock
// there. None: it is of no kind that a connection has.
std::optional<JobRequest> RequestOf(Message& message);

class RequestSender {
 public:
  // All outlive it. `log`: null, where nothing outlives the daemon.
  RequestSender(Dues& dues, RequestLog* log) : dues_(dues), log_(log) {}

  // From here until Pause: where it goes.
  void Begin(MessageChannel& channel);
  // To another daemon: what was not acknowledged before anything else. What is
  // not OK ends the connection.
  absl::Status BeginAgain(MessageChannel& channel);
  void Pause();

  // Sends all that the inbox has. False: something is left for the relay. What
  // is not OK ends the connection, and stays so.
  absl::StatusOr<bool> Send(Inbox& inbox);
  // The relay's own question, unless there is no room even for what is posted.
  absl::Status Ask();
  // Of the channel.
  bool RestForRoom();

  // A request that is too long to be sent, and why.
  using Refused = std::pair<JobRequest, absl::Status>;
  std::vector<Refused> TakeRefused();

 private:
  absl::Status SendAll(Inbox& inbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Send(JobRequests batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Dues& dues_;
  RequestLog* const log_;
  Mutex mutex_;
  // Its sending side; null: there is no daemon.
  MessageChannel* channel_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<Message> drained_ ABSL_GUARDED_BY(mutex_);  // its room is kept
  std::vector<Refused> refused_ ABSL_GUARDED_BY(mutex_);
  absl::Status how_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
