#include "daemon/jobs/lending/room_waits.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace terrace {

absl::Status RoomWaits::Await(RoomWait wait) {
  const absl::Time until = wait.deadline + kGrace;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++numbers_;
    waits_[number].wait = std::move(wait);
  }
  wake_();
  MutexLock lock(mutex_);
  const auto found = waits_.find(number);
  while (!ends_ && !found->second.answer.has_value()) {
    const absl::Duration left = until - SystemClock().Now();
    if (left <= absl::ZeroDuration()) break;
    answered_.WaitFor(mutex_, left);
  }
  const Entry entry = std::move(found->second);
  waits_.erase(found);
  if (entry.answer.has_value()) return *entry.answer;
  if (ends_) return absl::UnavailableError("the daemon ends");
  return absl::UnavailableError(
      absl::StrCat("nobody decides about ", entry.wait.bytes,
                   " bytes of memory: the daemon's server does not answer"));
}

std::vector<std::pair<uint64_t, RoomWait>> RoomWaits::TakeNew() {
  std::vector<std::pair<uint64_t, RoomWait>> taken;
  MutexLock lock(mutex_);
  for (auto& [number, entry] : waits_) {
    if (entry.is_taken) continue;
    entry.is_taken = true;
    taken.emplace_back(number, entry.wait);
  }
  return taken;
}

bool RoomWaits::Answer(uint64_t number, absl::Status answer) {
  MutexLock lock(mutex_);
  const auto found = waits_.find(number);
  if (found == waits_.end()) return false;
  found->second.answer = std::move(answer);
  answered_.SignalAll();
  return true;
}

void RoomWaits::End() {
  MutexLock lock(mutex_);
  ends_ = true;
  answered_.SignalAll();
}

}  // namespace terrace
