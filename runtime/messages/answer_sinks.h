// Where the mover's answers go: what a client has of itself and of each of its
// queues. For a client in this process these are ports, at which its threads
// wait; for one in another process they are sent to it.
//
// The mover alone calls them, and none may block. What comes back in a group
// that was handed over is its client's from then on; a sink whose client is
// gone ends it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/messages/answers.h"

namespace terrace {

// Of a queue with slots.
class QueueSink {
 public:
  virtual ~QueueSink() = default;
  // Hands over what became ready and says whether only the queue's own pins
  // block its head, as of the inbox's message number `processed`;
  // `blocked_also`: of a failed write-back whose slot would have done.
  virtual void Publish(std::vector<ReadyGroup>* ready, bool blocked_by_own_pins,
                       uint64_t processed,
                       const absl::Status& blocked_also) = 0;
  // The runtime is closed: nothing more comes.
  virtual void Close() = 0;
};

// Of a queue of bytes.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Hands over what became ready, and tokens of pins to be answered.
  virtual void Publish(std::vector<ReadyGroup>* ready,
                       std::vector<uint64_t>* recalls) = 0;
  virtual void Close() = 0;
};

// Of a client.
class ClientSink {
 public:
  virtual ~ClientSink() = default;
  // The answer to that request of the client's.
  virtual void Deliver(uint64_t number, Answer answer) = 0;
  // The sink of a queue that is open from here on.
  virtual std::shared_ptr<QueueSink> OpenQueue(int64_t id) = 0;
  virtual std::shared_ptr<ByteSink> OpenBytes(int64_t id) = 0;
};

}  // namespace terrace
