#include "runtime/messages/queue_port.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "runtime/messages/untaken_groups.h"

namespace terrace {

void QueuePort::Publish(std::vector<ReadyGroup>* ready,
                        bool blocked_by_own_pins, uint64_t processed,
                        const absl::Status& blocked_also) {
  {
    MutexLock lock(mutex_);
    if (!closed()) {
      const bool news = !ready->empty() || blocked_by_own_pins;
      for (ReadyGroup& group : *ready) ready_.push_back(std::move(group));
      ready->clear();
      blocked_by_own_pins_ = blocked_by_own_pins;
      blocked_also_ = blocked_also;
      processed_ = processed;
      if (news) changed_.SignalAll();
      return;
    }
  }
  EndUntakenGroups(*ready, *pins_);
}

void QueuePort::Close() {
  std::deque<ReadyGroup> untaken;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    untaken.swap(ready_);
    changed_.SignalAll();
  }
  EndUntakenGroups(untaken, *pins_);
}

absl::StatusOr<ReadyGroup> QueuePort::Take(Clock& clock, uint64_t posted,
                                           absl::Time deadline) {
  MutexLock lock(mutex_);
  auto blocked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return blocked_by_own_pins_ && processed_ >= posted;
  };
  clock.Await(
      mutex_, changed_,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !ready_.empty() || closed() || blocked() || woken_;
      },
      deadline);
  if (!ready_.empty()) {
    ReadyGroup ready = std::move(ready_.front());
    ready_.pop_front();
    return ready;
  }
  if (closed()) return absl::CancelledError("the runtime was closed");
  if (blocked()) {
    return Reworded(blocked_also_, absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("only pins of this queue block its next group",
                                 blocked_also_.ok() ? "" : "; besides them: ",
                                 absl::string_view(blocked_also_.message())));
  }
  // The flag stays until here, so that a Wake before the wait counts too.
  if (std::exchange(woken_, false)) {
    return absl::AbortedError("the wait was ended by a Wake");
  }
  return absl::DeadlineExceededError("nothing became ready in time");
}

void QueuePort::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.SignalAll();
}

}  // namespace terrace
