// The customer's end of a queue of bytes: answers by request, and recalls.
//
// Each request has one thread that waits for it, and its answer wakes that
// thread alone. A recall wakes one thread that waits, or else the one that
// waits for recalls alone. A recall of a pin whose answer was not taken yet
// comes with that answer, as do those that an answer brings; one of a pin that
// has ended does not come.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/process.h"
#include "runtime/messages/answer_sinks.h"
#include "runtime/messages/answers.h"
#include "terrace/pin.h"

namespace terrace {

// Written by the mover, read by the customer's threads. Pins that were taken
// end here, on any thread, and keep the port.
class BytePort final : public ByteSink, public PinOwner {
 public:
  // The ends of pins go on to `pins`.
  explicit BytePort(std::shared_ptr<PinOwner> pins) : pins_(std::move(pins)) {}

  void Publish(std::vector<ReadyGroup>* ready,
               std::vector<uint64_t>* recalls) override;
  // No more is taken: ends the pins that were never taken, now and from now on.
  void Close() override;
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

  struct News {
    std::optional<ReadyGroup> group;
    std::vector<uint64_t> recalls;
  };
  // Customer: the number of a request that it is to post; and that it did not.
  uint64_t AddRequest();
  void DropRequest(uint64_t request);
  // Whether there is something to take.
  bool HasNews(uint64_t request) const;
  // See ByteQueue. `deadline` is by the clock.
  absl::StatusOr<News> Take(Clock& clock, uint64_t request,
                            absl::Time deadline);
  absl::StatusOr<std::vector<uint64_t>> TakeRecalls(Clock& clock,
                                                    absl::Time deadline);
  void WakeRecalls();
  void EndPin(uint64_t token, PinEnd end) override;

 private:
  struct Request {
    std::optional<ReadyGroup> answer;
    std::vector<uint64_t> recalls;  // of its pins, or that came with it
    CondVar* waiter = nullptr;
  };

  // What cannot be handed over, as nobody waits for it, stays in `ready`.
  void Deliver(std::vector<ReadyGroup>* ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Recall(uint64_t token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One thread takes the recalls that there are.
  void TellOfRecalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ReadyGroup TakeAnswer(uint64_t request, std::vector<uint64_t>* recalls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  const std::shared_ptr<PinOwner> pins_;
  mutable Mutex mutex_;
  uint64_t last_request_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::node_hash_map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<CondVar*> waiters_ ABSL_GUARDED_BY(mutex_);
  CondVar recalled_;
  std::vector<uint64_t> recalls_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // until TakeRecalls has said so
  // Pins of answers that were not taken, with the request; and taken ones.
  absl::flat_hash_map<uint64_t, uint64_t> untaken_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> closed_ = false;  // written with mutex_ held
};

}  // namespace terrace
