#include "runtime/messages/byte_port.h"

#include "absl/strings/str_cat.h"
#include "runtime/messages/untaken_groups.h"

namespace terrace {
namespace {

absl::Status Closed() { return absl::CancelledError("the runtime was closed"); }

}  // namespace

void BytePort::Publish(std::vector<ReadyGroup>* ready,
                       std::vector<uint64_t>* recalls) {
  {
    MutexLock lock(mutex_);
    if (!closed()) {
      Deliver(ready);
      for (const uint64_t token : *recalls) Recall(token);
      TellOfRecalls();
    }
    recalls->clear();
  }
  EndUntakenGroups(*ready, *pins_);
}

void BytePort::Deliver(std::vector<ReadyGroup>* ready) {
  std::vector<ReadyGroup> unwanted;
  for (ReadyGroup& group : *ready) {
    const auto found = requests_.find(group.tag);
    // A client that names two groups alike has the first one's answer.
    if (found == requests_.end() || found->second.answer.has_value()) {
      for (const uint64_t token : group.recalls) Recall(token);
      unwanted.push_back(std::move(group));
      continue;
    }
    if (group.grants.ok()) {
      for (const Grant& grant : *group.grants) {
        untaken_[grant.token] = group.tag;
      }
    }
    // One of an earlier answer that was not taken yet comes with that.
    for (const uint64_t token : group.recalls) {
      const auto untaken = untaken_.find(token);
      const uint64_t with =
          untaken == untaken_.end() ? group.tag : untaken->second;
      requests_.at(with).recalls.push_back(token);
    }
    found->second.answer = std::move(group);
    if (found->second.waiter != nullptr) found->second.waiter->Signal();
  }
  ready->swap(unwanted);
}

void BytePort::Recall(uint64_t token) {
  const auto found = untaken_.find(token);
  if (found != untaken_.end()) {
    requests_.at(found->second).recalls.push_back(token);
  } else if (taken_.contains(token)) {
    recalls_.push_back(token);
  }
}

void BytePort::TellOfRecalls() {
  if (recalls_.empty()) return;
  if (waiters_.empty()) {
    recalled_.Signal();
  } else {
    waiters_.front()->Signal();
  }
}

void BytePort::Close() {
  std::vector<ReadyGroup> untaken;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (auto& [tag, request] : requests_) {
      if (request.answer.has_value()) {
        untaken.push_back(*std::move(request.answer));
        request.answer.reset();
      }
    }
    untaken_.clear();
    recalls_.clear();
    for (CondVar* const waiter : waiters_) waiter->SignalAll();
    recalled_.SignalAll();
  }
  EndUntakenGroups(untaken, *pins_);
}

uint64_t BytePort::AddRequest() {
  MutexLock lock(mutex_);
  requests_.try_emplace(++last_request_);
  return last_request_;
}

void BytePort::DropRequest(uint64_t request) {
  MutexLock lock(mutex_);
  requests_.erase(request);
}

bool BytePort::HasNews(uint64_t request) const {
  MutexLock lock(mutex_);
  const auto found = requests_.find(request);
  return !recalls_.empty() || found == requests_.end() ||
         found->second.answer.has_value();
}

absl::StatusOr<BytePort::News> BytePort::Take(Clock& clock, uint64_t request,
                                              absl::Time deadline) {
  MutexLock lock(mutex_);
  const auto found = requests_.find(request);
  if (closed()) return Closed();
  if (found == requests_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no request ", request));
  }
  Request& mine = found->second;  // nobody else takes it
  CondVar changed;
  mine.waiter = &changed;
  waiters_.push_back(&changed);
  clock.Await(
      mutex_, changed,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return mine.answer.has_value() || !recalls_.empty() || closed();
      },
      deadline);
  std::erase(waiters_, &changed);
  mine.waiter = nullptr;
  if (closed()) return Closed();
  News news;
  news.recalls.swap(recalls_);
  if (mine.answer.has_value()) {
    news.group = TakeAnswer(request, &news.recalls);
  } else if (news.recalls.empty()) {
    return absl::DeadlineExceededError("nothing became ready in time");
  }
  return news;
}

ReadyGroup BytePort::TakeAnswer(uint64_t request,
                                std::vector<uint64_t>* recalls) {
  const auto found = requests_.find(request);
  Request taken = std::move(found->second);
  requests_.erase(found);
  if (taken.answer->grants.ok()) {
    for (const Grant& grant : *taken.answer->grants) {
      untaken_.erase(grant.token);
      taken_.insert(grant.token);
    }
  }
  // Others may have ended since the answer was made.
  for (const uint64_t token : taken.recalls) {
    if (taken_.contains(token)) recalls->push_back(token);
  }
  return *std::move(taken.answer);
}

absl::StatusOr<std::vector<uint64_t>> BytePort::TakeRecalls(
    Clock& clock, absl::Time deadline) {
  MutexLock lock(mutex_);
  const auto are_mine = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiters_.empty() && !recalls_.empty();
  };
  clock.AwaitIdly(
      mutex_, recalled_,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return are_mine() || closed() || woken_;
      },
      deadline);
  if (closed()) return Closed();
  if (are_mine()) return std::exchange(recalls_, {});
  // The flag stays until here, so that a call before the wait counts too.
  if (std::exchange(woken_, false)) {
    return absl::AbortedError("the wait was ended by WakeRecalls");
  }
  return absl::DeadlineExceededError("nothing was recalled in time");
}

void BytePort::WakeRecalls() {
  MutexLock lock(mutex_);
  woken_ = true;
  recalled_.SignalAll();
}

void BytePort::EndPin(uint64_t token, PinEnd end) {
  if (!process_.IsCurrent()) return;
  {
    MutexLock lock(mutex_);
    taken_.erase(token);
    std::erase(recalls_, token);
  }
  pins_->EndPin(token, end);
}

}  // namespace terrace
