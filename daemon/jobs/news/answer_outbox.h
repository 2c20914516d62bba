// Where a runtime's mover puts what it answers a process of a job: news that
// wait until the thread of that process's session sends them.
//
// Thread-safe; nothing blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/wake_event.h"
#include "runtime/messages/answer_sinks.h"

namespace terrace {

class AnswerOutbox final : public ClientSink,
                           public std::enable_shared_from_this<AnswerOutbox> {
 public:
  // `news` is set for the first that comes to who rests.
  explicit AnswerOutbox(std::shared_ptr<const WakeEvent> news)
      : news_(std::move(news)) {}

  void Deliver(uint64_t number, Answer answer) override;
  std::shared_ptr<QueueSink> OpenQueue(int64_t id) override;
  std::shared_ptr<ByteSink> OpenBytes(int64_t id) override;

  // In the order in which they came. Counts of what was processed are the
  // inbox's.
  std::vector<JobNewsEntry> Take();
  // Who takes them sleeps until the event is set. False: there are some.
  bool Rest();
  void Stir();
  bool IsEmpty() const { return is_empty_.load(std::memory_order_relaxed); }
  void Add(JobNewsEntry entry);

 private:
  const std::shared_ptr<const WakeEvent> news_;
  Mutex mutex_;
  std::atomic<bool> is_empty_ = true;
  std::vector<JobNewsEntry> entries_ ABSL_GUARDED_BY(mutex_);
  bool rests_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
