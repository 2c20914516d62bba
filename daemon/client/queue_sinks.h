// Where news of a process's queues go: the sinks of its port, by the queue.
// What a daemon tells is checked before any of it is handed over: a group, and
// a pin's place in the process's memory.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/wire/job_messages.h"
#include "runtime/messages/port.h"

namespace terrace {

// Internal: what no daemon answers.
absl::Status WrongAnswer(absl::string_view what);

class QueueSinks {
 public:
  // The port outlives it, and its pins lie in the first `memory_bytes` of its
  // memory.
  QueueSinks(Port& port, int64_t memory_bytes)
      : port_(port), memory_bytes_(memory_bytes) {}

  bool Has(int64_t queue) const {
    return slots_.contains(queue) || bytes_.contains(queue);
  }
  // Each before its customer is told of the queue.
  void OpenQueue(int64_t id);
  void OpenBytes(int64_t id);

  // Internal: news that no daemon gives.
  absl::Status Hear(QueueNews& news);
  absl::Status Hear(BytesNews& news);
  void Hear(const QueueClosed& news);
  void Hear(const QueueGone& news);
  // A group that could not be sent is answered here. What a queue with slots
  // knows of its own pins is told anew, as the daemon hears that there was one.
  void Fail(const PushRequest& push, const absl::Status& why);
  void Fail(const PushBytesRequest& push, const absl::Status& why);
  // Nobody waits at any of them any more.
  void CloseAll();

 private:
  // What comes of a queue that has gone tells nobody anything; of one that was
  // never there, or with pins, it is Internal.
  absl::Status HearOfNone(int64_t queue,
                          const std::vector<ReadyGroup>& groups) const;
  absl::Status CheckGroups(const std::vector<ReadyGroup>& groups) const;
  absl::Status CheckGrants(const ReadyGroup& group) const;

  Port& port_;
  const int64_t memory_bytes_;
  absl::flat_hash_map<int64_t, std::shared_ptr<QueueSink>> slots_;
  absl::flat_hash_map<int64_t, std::shared_ptr<ByteSink>> bytes_;
  int64_t last_ = -1;  // of those that were opened, whose ids rise
};

}  // namespace terrace
