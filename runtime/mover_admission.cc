// Groups: who is admitted, what they hold, when they are ready; pins; and the
// prefetcher, which asks for the same things ahead of the customer.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {

void Mover::AdmitGroups(Queue& queue, absl::Time now) {
  queue.blocked_by_own_pins = false;
  queue.blocked_also = absl::OkStatus();
  while (!queue.waiting.empty()) {
    Group& head = queue.waiting.begin()->second;
    const uint64_t id = head.id;
    if (!head.headed) {
      head.headed = true;
      head.at_head = now;
      // Before space is sought: from here on a tensor's next use is the one
      // after this, also its own.
      if (queue.step_open) {
        for (const Want& want : head.wants) queue.trace.OnAccess(want.tensor);
      }
    }
    if (!TryAdmit(queue, head, now)) break;
    EraseWaiting(queue, id);
  }
  if (queue.admitted > 0) queue.blocked_by_own_pins = false;
}

// Ends the waiting groups whose deadline has come, wherever they stand; what
// stood behind one may have its turn now.
void Mover::ExpireGroups(Queue& queue, absl::Time now) {
  auto expired = [&queue, now] {
    return !queue.deadlines.empty() && queue.deadlines.begin()->first <= now;
  };
  if (!expired()) return;
  const std::string holders = Holders();
  while (expired()) {
    Group& group = queue.waiting.at(queue.deadlines.begin()->second);
    FailGroup(queue, group,
              absl::ResourceExhaustedError(
                  absl::StrCat("group ", group.tag,
                               " was not admitted in time; held: ", holders)));
    EraseWaiting(queue, group.id);
  }
  AdmitGroups(queue, now);
}

// True when the group left the queue's front: admitted, ready or failed.
bool Mover::TryAdmit(Queue& queue, Group& group, absl::Time now) {
  for (const Want& want : group.wants) {
    TensorEntry* const wanted = FindRegistered(want.tensor);
    if (wanted == nullptr) {
      FailGroup(queue, group,
                absl::InvalidArgumentError(
                    absl::StrCat("no tensor ", want.tensor.value)));
      return true;
    }
    TensorEntry& entry = *wanted;
    if (!entry.loss.ok()) {
      Report(queue.id, entry.loss);
      FailGroup(queue, group, entry.loss);
      return true;
    }
    if (entry.generation == 0 && entry.host != HostState::kValid &&
        want.access != Access::kOverwrite) {
      FailGroup(queue, group,
                absl::FailedPreconditionError(absl::StrCat(
                    "tensor '", entry.spec.name, "' was never written")));
      return true;
    }
    if (entry.quarantined && want.access != Access::kRead) {
      // Who knows until when: its last write passed its deadline.
      FailGroup(
          queue, group,
          WithIoFault(absl::DeadlineExceededError(absl::StrCat(
                          "tensor '", entry.spec.name, "': a write to ",
                          paths_.name(entry.target_path), ", offset ",
                          entry.target.offset, ", ", entry.extent.size_bytes,
                          " bytes, is past its deadline and still under way")),
                      {.path = paths_.name(entry.target_path),
                       .offset = entry.target.offset}));
      return true;
    }
    if (!CanPin(want, entry, queue, group)) return false;
  }
  // All wants can be had as far as pins go; now space.
  absl::Status failure;
  const Space space = PlaceGroup(queue, group, &failure);
  if (space != Space::kFound) {
    queue.blocked_by_own_pins = space == Space::kOwnPins;
    if (space == Space::kOwnPins) queue.blocked_also = failure;
    if (space == Space::kWriteBack) group.waited_for_write = true;
    if (space == Space::kFailed) FailGroup(queue, group, failure);
    return space == Space::kFailed;
  }
  group.admitted = now;
  group.held.assign(group.wants.size(), true);
  ++queue.admitted;
  const uint64_t id = group.id;
  Group& kept = admitted_[id].second;
  admitted_[id] = {queue.id, std::move(group)};
  for (const Want& want : kept.wants) {
    Hold(queue, want, *table_.Find(want.tensor), kept);
  }
  if (kept.missing == 0) FinishGroup(queue, kept);
  return true;
}

// A place for every want, or for none: what was taken is given back when a
// later one has to wait.
Mover::Space Mover::PlaceGroup(Queue& queue, const Group& group,
                               absl::Status* failure) {
  std::vector<TensorEntry*> present;
  std::vector<TensorEntry*> absent;
  for (const Want& want : group.wants) {
    TensorEntry* entry = table_.Find(want.tensor);
    (entry->host == HostState::kAbsent ? absent : present).push_back(entry);
  }
  // Keeps them from making room for the others.
  for (TensorEntry* entry : present) entry->kept = true;
  Space space = Space::kFound;
  size_t placed = 0;
  while (placed < absent.size() && space == Space::kFound) {
    space = FindSpace(queue, *absent[placed], failure);
    if (space == Space::kFound) ++placed;
  }
  for (TensorEntry* entry : present) entry->kept = false;
  if (space != Space::kFound) {
    for (size_t i = 0; i < placed; ++i) DropHostCopy(*absent[i]);
  }
  return space;
}

// Who pins the tensor, or holds it for a group that is not ready yet.
Mover::PinnedBy Mover::WhoPins(const TensorEntry& entry, int64_t queue) {
  PinnedBy by;
  for (const int64_t holder : entry.pinned_by) {
    (holder == queue ? by.own : by.others) = true;
  }
  // A hold's group will have the tensor, and its owner will let go of it.
  if (entry.pins > static_cast<int>(entry.pinned_by.size())) by.others = true;
  return by;
}

// Whether pins and transfers allow this want now. A writer waits for readers
// and for the transfer out; what was not issued of it is cancelled for him.
bool Mover::CanPin(const Want& want, TensorEntry& entry, Queue& queue,
                   Group& group) {
  if (entry.write_pinned || (want.access != Access::kRead && entry.pins > 0)) {
    queue.blocked_by_own_pins = !WhoPins(entry, queue.id).others;
    return false;
  }
  if (want.access == Access::kRead) return true;
  if (entry.write != WriteState::kIdle || entry.quarantined) {
    group.waited_for_write = true;
    // Once: a writer who waits for something else too would else keep it
    // from ever being written.
    if (entry.write == WriteState::kWriting && !entry.yielded) {
      entry.yielded = true;
      io_->Cancel(entry.target_path, entry.io_tag);
    }
    return false;
  }
  return true;
}

// Takes the want's hold; starts the fetch when there is nothing to pin yet.
void Mover::Hold(Queue& queue, const Want& want, TensorEntry& entry,
                 Group& group) {
  ++entry.pins;
  entry.write_pinned = want.access != Access::kRead;
  entry.queue = queue.id;
  SetLeaving(entry, false);
  if (entry.write_pinned) entry.yielded = false;
  if (entry.write == WriteState::kIdle) entry.refused_by.clear();
  entry.prefetch_failed = false;
  if (entry.window == kNoWindow) eviction_->OnTouch(entry.id);
  switch (entry.host) {
    case HostState::kValid:
      ++hits_;
      if (std::exchange(entry.prefetched, false)) ++prefetch_hits_;
      return;
    case HostState::kAbsent:
      if (want.access == Access::kOverwrite) {
        entry.host = HostState::kValid;
        return;
      }
      ++demand_reads_;
      StartRead(entry, IoClass::kDemand);
      break;
    case HostState::kLoading:
      if (std::exchange(entry.prefetched, false)) ++prefetch_hits_;
      io_->Promote(entry.path, entry.io_tag, IoClass::kDemand);
      break;
    case HostState::kVerifying:
      if (std::exchange(entry.prefetched, false)) ++prefetch_hits_;
      break;
  }
  group.fetched = true;
  ++group.missing;
  entry.waiting_groups.push_back(group.id);
}

void Mover::CopyBecameValid(TensorEntry& entry) {
  entry.host = HostState::kValid;
  entry.verify_failures = 0;
  for (uint64_t id : std::exchange(entry.waiting_groups, {})) {
    auto found = admitted_.find(id);
    if (found == admitted_.end()) continue;
    Group& group = found->second.second;
    if (--group.missing > 0) continue;
    FinishGroup(*queues_.at(found->second.first), group);
  }
}

void Mover::FailWaiters(TensorEntry& entry, const absl::Status& status) {
  for (uint64_t id : std::exchange(entry.waiting_groups, {})) {
    auto found = admitted_.find(id);
    if (found == admitted_.end()) continue;
    Group& group = found->second.second;
    if (group.failure.ok()) group.failure = status;
    for (size_t i = 0; i < group.wants.size(); ++i) {
      if (group.wants[i].tensor == entry.id) group.held[i] = false;
    }
    if (--group.missing > 0) continue;  // its other fetches are under way
    FinishGroup(*queues_.at(found->second.first), group);
  }
}

// All fetches of an admitted group have ended.
void Mover::FinishGroup(Queue& queue, Group& group) {
  Ready ready;
  ready.tag = group.tag;
  if (!group.failure.ok() || queue.closed || closing_) {
    ReleaseHolds(group);
    ready.pins = group.failure.ok()
                     ? absl::CancelledError("the queue was closed")
                     : group.failure;
    AddReady(queue, std::move(ready));
    EraseAdmitted(queue, group.id);
    return;
  }
  const absl::Duration waited = group.admitted - group.at_head;
  const absl::Duration fetched = clock_.Now() - group.admitted;
  if (group.fetched && fetched >= waited) {
    ready.cause = WaitCause::kRead;
  } else if (waited > absl::ZeroDuration()) {
    ready.cause =
        group.waited_for_write ? WaitCause::kWriteBack : WaitCause::kSpace;
  }
  std::vector<Pin> pins;
  for (const Want& want : group.wants) {
    TensorEntry& entry = *table_.Find(want.tensor);
    const uint64_t token = next_token_++;
    const bool was_dirty =
        entry.generation != 0 && entry.generation != entry.home_generation;
    pins_[token] = {&entry, queue.id, want.access, was_dirty};
    ++queue.held_pins;
    entry.pinned_by.push_back(queue.id);
    pins.emplace_back(inbox_, token, entry.id,
                      arena_.subspan(entry.extent.offset + kExtentHeaderBytes,
                                     entry.spec.size_bytes));
  }
  ready.pins = std::move(pins);
  AddReady(queue, std::move(ready));
  EraseAdmitted(queue, group.id);
}

// Ends a group that was not admitted.
void Mover::FailGroup(Queue& queue, Group& group, absl::Status status) {
  Ready ready;
  ready.tag = group.tag;
  ready.pins = std::move(status);
  AddReady(queue, std::move(ready));
}

void Mover::AddReady(Queue& queue, Ready ready) {
  Note(queue, ready);
  queue.ready.push_back(std::move(ready));
}

// Undoes the holds of a group that failed: as ReleaseUnchanged. Those of the
// copies that failed are gone already.
void Mover::ReleaseHolds(Group& group) {
  for (size_t i = 0; i < group.wants.size(); ++i) {
    if (!group.held[i]) continue;
    const Want& want = group.wants[i];
    TensorEntry& entry = *table_.Find(want.tensor);
    --entry.pins;
    if (want.access != Access::kRead) entry.write_pinned = false;
    if (want.access == Access::kOverwrite &&
        entry.generation == entry.home_generation) {
      DropHostCopy(entry);
    } else if (entry.dirty() && entry.window != kNoWindow) {
      dirty_.push_back(&entry);
    }
  }
}

void Mover::EraseWaiting(Queue& queue, uint64_t group) {
  auto found = queue.waiting.find(group);
  wanted_.Remove(found->second.wants);  // none when it was admitted
  queue.deadlines.erase({found->second.deadline, group});
  queue.waiting.erase(found);
}

void Mover::EraseAdmitted(Queue& queue, uint64_t group) {
  auto found = admitted_.find(group);
  if (!queue.closed) wanted_.Remove(found->second.second.wants);
  admitted_.erase(found);
  --queue.admitted;
  NoteIfEnded(queue);
}

void Mover::EndPin(const PinRecord& pin, PinEnd end) {
  TensorEntry& entry = *pin.entry;
  auto found = queues_.find(pin.queue);
  TERRACE_CHECK(found != queues_.end());
  --found->second->held_pins;
  NoteIfEnded(*found->second);
  --entry.pins;
  auto& holders = entry.pinned_by;
  holders.erase(std::find(holders.begin(), holders.end(), pin.queue));
  if (pin.access == Access::kRead) {
    if (entry.pins > 0) return;
    // A reader may have come before the write-back of what he read.
    if (entry.dirty() && entry.window != kNoWindow) dirty_.push_back(&entry);
    // A reader's promise that it needs no copy any more.
    const bool needless = end == PinEnd::kDiscard && !entry.dirty();
    if (needless && entry.idle()) DropHostCopy(entry);
    return;
  }
  entry.write_pinned = false;
  if (end == PinEnd::kPublish) {
    ++entry.generation;
    // The lower copy is of an older generation from here on.
    if (entry.window != kNoWindow) dirty_.push_back(&entry);
    return;
  }
  const bool overwritten = pin.access == Access::kOverwrite;
  const bool lower_is_current =
      entry.generation == entry.home_generation;  // also: never written
  if (end == PinEnd::kUnchanged && !(overwritten && lower_is_current)) {
    // The host copy is as it was: valid, dirty if it was.
    if (pin.was_dirty && entry.window != kNoWindow) dirty_.push_back(&entry);
    return;
  }
  DropHostCopy(entry);
  if (!lower_is_current) {
    LoseTensor(entry, absl::DataLossError(absl::StrCat(
                          "tensor '", entry.spec.name,
                          "' was discarded and no lower copy is current")));
  }
}

// Fetches what the last step's order says comes next, into slots that hold
// nothing needed sooner. Only when no group waits: those come first.
void Mover::PrefetchFromTrace(Queue& queue) {
  if (!prefetch_enabled_ || queue.closed || !queue.trace.has_replay() ||
      !queue.waiting.empty()) {
    return;
  }
  const Window& window = windows_[queue.window];
  std::vector<TensorId> upcoming;
  queue.trace.Upcoming(2 * static_cast<int64_t>(window.owners.size()),
                       &upcoming);
  absl::Status failure;
  for (TensorId id : upcoming) {
    TensorEntry* const next = FindRegistered(id);
    if (next == nullptr) continue;
    TensorEntry& entry = *next;
    if (entry.host != HostState::kAbsent || !entry.loss.ok() ||
        entry.prefetch_failed) {
      continue;
    }
    if (entry.home_generation == 0 ||
        entry.home_generation != entry.generation ||
        ResidentBytes(entry.spec.size_bytes) > window.stride) {
      continue;
    }
    if (FindSlot(queue, entry, /*prefetch=*/true, &failure) != Space::kFound) {
      return;
    }
    ++prefetch_reads_;
    entry.prefetched = true;
    entry.queue = queue.id;
    StartRead(entry, IoClass::kPrefetch);
  }
}

}  // namespace terrace
