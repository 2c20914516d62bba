#include "runtime/crank.h"

namespace terrace {

absl::Time Crank::Turn() {
  is_wanted_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  is_wanted_ = false;
  sleeps_until_ = mover_->RunOnce();
  return sleeps_until_;
}

void Crank::PostAndServe(absl::FunctionRef<void()> post) noexcept {
  if (is_wanted_) return post();
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || mover_ == nullptr) return post();
  const std::shared_ptr<Inbox> inbox = mover_->inbox();
  inbox->HoldWakes();
  post();
  const bool is_due = mover_->RunRequests() < sleeps_until_;
  lock.unlock();
  inbox->ReleaseWakes();
  if (is_due) inbox->Wake();
}

void Crank::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  mover_ = nullptr;
}

}  // namespace terrace
