// The clients that there are, and where the mover's answers go to each.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "runtime/messages/answer_sinks.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/port.h"
#include "runtime/messages/request_id.h"
#include "terrace/pin.h"

namespace terrace {

class Ports {
 public:
  // Pins that nobody takes end at `pins`.
  explicit Ports(std::shared_ptr<PinOwner> pins) : pins_(std::move(pins)) {}

  // A new client's, the first of which is kLocalClient. The client is gone when
  // nobody has the port any more.
  std::shared_ptr<Port> Open();
  // The same of a client that is answered elsewhere: its number. It is gone
  // when nobody has the sink any more.
  ClientId Join(const std::shared_ptr<ClientSink>& sink);

  // Nothing for an empty id, and for a client that is gone.
  void Deliver(RequestId id, Answer answer) const;
  // The mover's end of a queue of that client.
  std::shared_ptr<QueueSink> OpenQueue(ClientId client, int64_t queue) const;
  std::shared_ptr<ByteSink> OpenBytes(ClientId client, int64_t queue) const;
  // Ends what is granted to groups that no customer took.
  void EndUntaken(std::vector<ReadyGroup>& untaken) const;

 private:
  ClientId NextClient() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<ClientSink> Find(ClientId client) const;

  const std::shared_ptr<PinOwner> pins_;
  mutable Mutex mutex_;
  ClientId next_ ABSL_GUARDED_BY(mutex_) = kLocalClient;
  absl::flat_hash_map<ClientId, std::weak_ptr<ClientSink>> clients_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
