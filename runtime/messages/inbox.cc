#include "runtime/messages/inbox.h"

#include <utility>
#include <variant>
#include <vector>

namespace terrace {
namespace {

// Of a queue: a mover that is so far behind need not hear of all of them.
constexpr size_t kMostUnreadUses = 16 << 10;

// Names of a model's tensors, and hints of all that a step uses, are many.
bool IsForMover(const Message& message) {
  const auto* const request = std::get_if<Request>(&message);
  return request == nullptr || std::holds_alternative<StatsRequest>(*request) ||
         std::holds_alternative<RegisterRequest>(*request) ||
         std::holds_alternative<PrefetchRequest>(*request);
}

}  // namespace

bool Inbox::Post(Message message) {
  if (!IsOwnProcess()) return false;
  bool was_empty = false;
  {
    MutexLock lock(mutex_);
    if (!shut_.ok()) return false;
    was_empty = messages_.empty();
    if (std::holds_alternative<Request>(message)) ++requests_;
    if (IsForMover(message)) ++for_mover_;
    messages_.push_back(std::move(message));
    ++posted_;
  }
  WakeIf(was_empty);
  return true;
}

bool Inbox::PostTouch(TouchRequest touch) {
  if (!IsOwnProcess()) return false;
  bool was_empty = false;
  {
    MutexLock lock(mutex_);
    if (!shut_.ok()) return false;
    TouchRequest*& unread = touches_[{touch.queue, touch.lane}];
    if (unread != nullptr) {
      std::vector<TensorId>& all = unread->tensors;
      if (all.size() + touch.tensors.size() > kMostUnreadUses) all.clear();
      all.insert(all.end(), touch.tensors.begin(), touch.tensors.end());
      return true;
    }
    was_empty = messages_.empty();
    messages_.emplace_back(Request(std::move(touch)));
    unread = &std::get<TouchRequest>(std::get<Request>(messages_.back()));
    ++posted_;
    ++requests_;
  }
  WakeIf(was_empty);
  return true;
}

void Inbox::Wake() {
  MutexLock lock(wake_mutex_);
  if (!wake_shut_) wake_();
}

bool Inbox::shut() const {
  MutexLock lock(mutex_);
  return !shut_.ok();
}

absl::Status Inbox::Closed() const {
  if (!IsOwnProcess()) {
    return absl::CancelledError("the runtime is the parent process's");
  }
  MutexLock lock(mutex_);
  return shut_.ok() ? absl::CancelledError("the runtime was closed") : shut_;
}

uint64_t Inbox::posted() const {
  MutexLock lock(mutex_);
  return posted_;
}

int64_t Inbox::requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

uint64_t Inbox::Drain(std::deque<Message>* messages) {
  MutexLock lock(mutex_);
  messages->swap(messages_);
  touches_.clear();
  for_mover_ = 0;
  return posted_;
}

std::optional<uint64_t> Inbox::DrainRequests(std::deque<Message>* messages) {
  MutexLock lock(mutex_);
  if (for_mover_ > 0) return std::nullopt;
  messages->swap(messages_);
  touches_.clear();
  return posted_;
}

// Who posts adds a message and then looks whether it wakes; here it is the
// other way, so that one of the two sees the other.
void Inbox::ReleaseWakes() {
  holds_wakes_ = false;
  bool is_empty = true;
  {
    MutexLock lock(mutex_);
    is_empty = messages_.empty();
  }
  if (!is_empty) Wake();
}

std::deque<Message> Inbox::Shut(absl::Status why) {
  {
    MutexLock lock(wake_mutex_);
    wake_shut_ = true;
  }
  std::deque<Message> left;
  MutexLock lock(mutex_);
  if (shut_.ok()) shut_ = std::move(why);
  left.swap(messages_);
  touches_.clear();
  return left;
}

}  // namespace terrace
