// What a MemoryStore does for queues of bytes beyond what it does for others.
#include <utility>

#include "base/check.h"
#include "runtime/memory/memory_store.h"

namespace terrace {

absl::StatusOr<int64_t> MemoryStore::OpenRequest(int64_t queue) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  lines_.emplace(
      next_line_,
      Line{.slot_bytes = INT64_MAX, .slots = INT32_MAX, .queue = queue});
  return next_line_++;
}

void MemoryStore::Recall(const Group& group) {
  bool recalls = false;
  for (auto& [token, pin] : pins_) {
    if (pin.queue < 0 || pin.recalled) continue;
    for (const Want& want : group.wants) {
      if (want.tensor.value != pin.tensor || IsFree(want)) continue;
      const auto queue = lines_.find(pin.queue);
      if (queue == lines_.end() || pin.recalled) continue;  // it is closed
      pin.recalled = true;
      recalls = true;
      ++stats_.bytes.recalls;
      queue->second.recalls.push_back(token);
      for (auto& [id, line] : lines_) line.woken |= line.queue == pin.queue;
    }
  }
  if (recalls) NoteChange();
}

std::vector<uint64_t> MemoryStore::TakeRecalls(int64_t queue) {
  MutexLock lock(mutex_);
  return std::exchange(lines_.at(queue).recalls, {});
}

absl::StatusOr<std::vector<uint64_t>> MemoryStore::AwaitRecalls(
    int64_t queue, absl::Time deadline) {
  MutexLock lock(mutex_);
  Line& line = lines_.at(queue);
  const auto are_mine = [&line] {
    return line.waiting == 0 && !line.recalls.empty();
  };
  clock_.Await(
      mutex_, changed_,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return are_mine() || line.woken || closed_;
      },
      deadline);
  if (closed_) return Closed();
  if (are_mine()) return std::exchange(line.recalls, {});
  if (std::exchange(line.woken, false)) {
    return absl::AbortedError("the wait was ended by WakeRecalls");
  }
  return absl::DeadlineExceededError("nothing was recalled in time");
}

}  // namespace terrace
