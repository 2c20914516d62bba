#include "daemon/client/dues.h"

#include <type_traits>
#include <variant>

#include "daemon/client/shared_memory.h"
#include "daemon/wire/lending_patience.h"

namespace terrace {
namespace {

template <typename Body>
Due DueTo(const Body& body) {
  if constexpr (std::is_same_v<Body, RegisterRequest>) {
    return {Due::Kind::kTensors, body.specs.size()};
  } else if constexpr (std::is_same_v<Body, OpenRequest>) {
    return {.kind = Due::Kind::kQueue};
  } else if constexpr (std::is_same_v<Body, OpenBytesRequest>) {
    return {.kind = Due::Kind::kBytes};
  } else if constexpr (std::is_same_v<Body, StatsRequest>) {
    return {.kind = Due::Kind::kStats};
  } else if constexpr (std::is_same_v<Body, CloseRequest>) {
    return {.kind = Due::Kind::kClose};
  } else if constexpr (std::is_same_v<Body, GrowRequest>) {
    return {.takes =
                LendingPatience(body.bytes) + PopulationPatience(body.bytes)};
  } else {
    return {};
  }
}

}  // namespace

void Dues::Note(const JobRequest& request, absl::Time now) {
  MutexLock lock(mutex_);
  std::visit(
      [&](const auto& body) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if constexpr (requires { body.id; }) {
          const uint64_t number = body.id.number;
          const Due due = DueTo(body);
          if (!dues_.try_emplace(number, due).second) return;
          allowed_ += due.takes;
          if (number != kOwnNumber) under_way_.BeginRequest(number, now);
        } else if constexpr (requires { body.tag; }) {
          under_way_.BeginGroup(body.queue, body.tag, now);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(body)>,
                                            CloseQueueRequest>) {
          under_way_.EndQueue(body.queue);  // it cancels them
        }
      },
      request);
}

std::optional<Due> Dues::Take(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = dues_.find(number);
  if (found == dues_.end()) return std::nullopt;
  const Due due = found->second;
  dues_.erase(found);
  allowed_ -= due.takes;
  under_way_.EndRequest(number);
  return due;
}

std::vector<std::pair<uint64_t, Due>> Dues::TakeAll() {
  MutexLock lock(mutex_);
  std::vector<std::pair<uint64_t, Due>> all(dues_.begin(), dues_.end());
  dues_.clear();
  under_way_ = UnderWay();
  allowed_ = absl::ZeroDuration();
  return all;
}

bool Dues::Has(uint64_t number) const {
  MutexLock lock(mutex_);
  return dues_.contains(number);
}

void Dues::EndGroups(int64_t queue, const std::vector<ReadyGroup>& groups) {
  MutexLock lock(mutex_);
  under_way_.EndGroups(queue, groups);
}

void Dues::EndQueue(int64_t queue) {
  MutexLock lock(mutex_);
  under_way_.EndQueue(queue);
}

absl::Time Dues::oldest() const {
  MutexLock lock(mutex_);
  return under_way_.oldest();
}

absl::Duration Dues::Allowed() const {
  MutexLock lock(mutex_);
  return allowed_;
}

}  // namespace terrace
