#include "runtime/mover/closing.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace terrace {

absl::Status Closing::Closed() {
  return absl::CancelledError("the runtime was closed");
}

bool Closing::Add(CloseRequest request) {
  requests_.push_back(std::move(request));
  if (begun_) return false;
  begun_ = true;
  return true;
}

absl::Time Closing::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const CloseRequest& each : requests_) {
    next = std::min(next, each.deadline);
  }
  return next;
}

bool Closing::Advance(absl::Time now, uint64_t processed,
                      const std::string& holders) {
  if (requests_.empty() || processed < after_) return false;
  absl::Time deadline = absl::InfiniteFuture();
  std::erase_if(requests_, [&](CloseRequest& each) {
    const bool refused = !holders.empty() && !each.force;
    if (refused) {
      parts_.ports->Deliver(each.id, absl::FailedPreconditionError(absl::StrCat(
                                         "still held: ", holders)));
    } else {
      deadline = std::min(deadline, each.deadline);
    }
    return refused;
  });
  if (requests_.empty()) return false;
  // Beside the transfers that still end: a disk that hangs in one of them may
  // yet let go of the names.
  parts_.resting->BeginRemove(quiet());
  const bool removed = parts_.resting->unremoved().empty();
  return (quiet() && removed) || now >= deadline;
}

int64_t Closing::MemoryBytes() const {
  int64_t bytes = 0;
  for (const TierResidency* const each : parts_.working->memories()) {
    bytes += each->tier().usage().capacity_bytes;
  }
  return bytes;
}

absl::Status Closing::Result() const {
  std::vector<std::string> late;
  if (!quiet()) {
    late.push_back(absl::StrCat(parts_.links->pending(), " transfers and ",
                                parts_.transfers->tasks(),
                                " tasks never ended; the arena of ",
                                MemoryBytes(), " bytes is leaked"));
  }
  for (const std::string& name : parts_.resting->unremoved()) {
    late.push_back(absl::StrCat(name, " could not be removed in time"));
  }
  if (late.empty()) return parts_.resting->removal_status();
  return absl::DeadlineExceededError(
      absl::StrCat("closing: ", absl::StrJoin(late, "; ")));
}

void Closing::End(bool pinned, Stats stats) {
  absl::Status result = Result();
  // A customer that still holds a pin may go on using its bytes.
  abandoned_ = !quiet() || pinned;
  ended_ = true;
  final_stats_ = std::move(stats);
  if (abandoned_) {
    final_stats_.host.leaked_bytes = MemoryBytes() + parts_.spill->used_bytes();
    parts_.spill->Leak();
  }
  // Before the engine is left behind: a message would wake it.
  const std::deque<Message> left = parts_.inbox->Shut();
  // What a transfer that never ended may still use: the engine, its buffers,
  // and the files' descriptors.
  if (!quiet()) {
    parts_.links->Abandon();
    parts_.resting->Abandon();
    for (TierResidency* const each : parts_.working->all()) {
      each->tier().Abandon();
    }
  }
  Answer(left, result);
  // No reference to what the last one is told stays behind here.
  for (size_t i = 0; i < requests_.size(); ++i) {
    const bool last = i + 1 == requests_.size();
    parts_.ports->Deliver(requests_[i].id, last ? std::move(result) : result);
  }
}

void Closing::Answer(const std::deque<Message>& left,
                     const absl::Status& result) const {
  for (const Message& message : left) {
    if (const auto* request = std::get_if<Request>(&message)) {
      if (auto* asked = std::get_if<StatsRequest>(request)) {
        parts_.ports->Deliver(asked->id, final_stats_);
        continue;
      }
      std::visit([&](const auto& body) { Refuse(body); }, *request);
    } else if (const auto* owner = std::get_if<OwnerRequest>(&message)) {
      if (auto* close = std::get_if<CloseRequest>(owner)) {
        parts_.ports->Deliver(close->id, result);
        continue;
      }
      std::visit([&](const auto& body) { Refuse(body); }, *owner);
    }  // nothing waits for an event
  }
}

}  // namespace terrace
