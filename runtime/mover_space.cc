// Space in the arena: slots of windows, room outside them, who gives it up.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {
namespace {

// How many residents one decision looks at. A decision must not cost more
// than the transfer it is about, however many residents there are; the hand
// moves on, so that all of them come up in turn.
constexpr int64_t kEvictionSample = 64;

}  // namespace

// A place for an absent tensor's host copy: outside the windows while there
// is room, so that it may stay; else a slot of the queue's window.
Mover::Space Mover::FindSpace(Queue& queue, TensorEntry& entry,
                              absl::Status* failure) {
  if (TakeResidentRoom(entry)) return Space::kFound;
  MakeRoom(queue, entry);
  if (TakeResidentRoom(entry)) return Space::kFound;
  return FindSlot(queue, entry, /*prefetch=*/false, failure);
}

bool Mover::TakeResidentRoom(TensorEntry& entry) {
  // What a window waits for is not taken from under it.
  if (!opens_.empty()) return false;
  absl::StatusOr<Extent> extent =
      space_.Allocate(ResidentBytes(entry.spec.size_bytes));
  if (!extent.ok()) return false;
  entry.extent = *extent;
  entry.window = kNoWindow;
  entry.slot = -1;
  entry.resident_index = residents_.size();
  residents_.push_back(&entry);
  resident_bytes_ += entry.extent.size_bytes;
  eviction_->OnResident(entry.id);
  return true;
}

// Asks the policy whether someone outside the windows should make room for
// the newcomer, and sees him off. The newcomer need not wait for it.
void Mover::MakeRoom(Queue& queue, const TensorEntry& newcomer) {
  const std::vector<EvictionCandidate> candidates = Evictable(kEvictionSample);
  if (candidates.empty()) return;
  const int64_t newcomer_use =
      queue.trace.has_replay() ? queue.trace.NextUse(newcomer.id) : kUnknownUse;
  std::vector<TensorId> victims;
  eviction_->PickVictims(ResidentBytes(newcomer.spec.size_bytes), newcomer_use,
                         /*must=*/false, candidates, &victims);
  for (TensorId id : victims) Evict(*table_.Find(id));
}

Mover::Space Mover::FindSlot(Queue& queue, TensorEntry& entry, bool prefetch,
                             absl::Status* failure) {
  Window& window = windows_[queue.window];
  TensorEntry* victim = nullptr;
  int64_t victim_use = -1;
  bool moving = false;
  bool writing = false;
  bool own_pins = false;
  for (size_t slot = 0; slot < window.owners.size(); ++slot) {
    TensorEntry* owner = window.owners[slot];
    if (owner == nullptr) {
      if (window.quarantined[slot]) {
        for (const auto& [tag, late] : transfers_) {
          if (late.window != queue.window ||
              late.slot != static_cast<int>(slot)) {
            continue;
          }
          *failure = absl::DeadlineExceededError(absl::StrCat(
              "a slot is quarantined: a read of ", paths_.name(late.path),
              ", offset ", late.place.offset, ", ", late.extent.size_bytes,
              " bytes, is past its deadline and still under way"));
        }
        continue;
      }
      TakeSlot(queue.window, static_cast<int>(slot), entry);
      return Space::kFound;
    }
    // Placed a moment ago for the same group.
    if (owner->host == HostState::kAbsent) continue;
    if (owner->idle() && !owner->dirty()) {
      const int64_t use = queue.trace.NextUse(owner->id);
      if (use > victim_use) {
        victim_use = use;
        victim = owner;
      }
    } else if (owner->host == HostState::kValid &&
               (owner->pins > 0 || owner->kept)) {
      const PinnedBy by = WhoPins(*owner, queue.id);
      own_pins |= by.own && !by.others;
      moving |= by.others;
    } else if (!owner->write_error.ok()) {
      *failure = owner->write_error;
    } else if (owner->idle() && owner->path < 0) {
      *failure = absl::ResourceExhaustedError(
          "the budget is full and there is no path to write to");
    } else {
      moving = true;  // on its way in or out
      writing |= owner->write != WriteState::kIdle;
    }
  }
  // A prefetch takes nothing that is needed no later than what it fetches.
  if (victim != nullptr &&
      (!prefetch || victim_use > queue.trace.NextUse(entry.id))) {
    const int slot = victim->slot;
    DropHostCopy(*victim);
    TakeSlot(queue.window, slot, entry);
    return Space::kFound;
  }
  if (moving) return writing ? Space::kWriteBack : Space::kWait;
  return own_pins ? Space::kOwnPins : Space::kFailed;
}

void Mover::TakeSlot(int window, int slot, TensorEntry& entry) {
  Window& taken = windows_[window];
  taken.owners[slot] = &entry;
  entry.window = window;
  entry.slot = slot;
  entry.extent = {taken.range.offset + slot * taken.stride,
                  ResidentBytes(entry.spec.size_bytes)};
}

// Gives up a host copy that nobody uses. The caller knows that it is not the
// only one, or says so (LoseTensor).
void Mover::DropHostCopy(TensorEntry& entry) {
  TERRACE_CHECK(entry.pins == 0 && entry.write == WriteState::kIdle);
  if (entry.extent.size_bytes != 0) {
    if (entry.window == kNoWindow) {
      space_.Free(entry.extent);
      EraseResident(entry);
    } else {
      windows_[entry.window].owners[entry.slot] = nullptr;
    }
  }
  entry.extent = {};
  entry.window = kNoWindow;
  entry.slot = -1;
  entry.host = HostState::kAbsent;
  entry.prefetched = false;
  entry.verify_failures = 0;
  SetLeaving(entry, false);
  entry.write_error = absl::OkStatus();
  entry.refused_by.clear();
}

// Its bytes in the arena stay the caller's to free.
void Mover::EraseResident(TensorEntry& entry) {
  residents_[entry.resident_index] = residents_.back();
  residents_[entry.resident_index]->resident_index = entry.resident_index;
  residents_.pop_back();
  resident_bytes_ -= entry.extent.size_bytes;
  eviction_->OnGone(entry.id);
}

void Mover::SetLeaving(TensorEntry& entry, bool leaving) {
  leaving_ += int{leaving} - int{entry.leaving};
  entry.leaving = leaving;
}

// A resident leaves: at once when clean, after its write-back when dirty.
void Mover::Evict(TensorEntry& entry) {
  if (!entry.idle() || entry.leaving) return;
  ++evictions_;
  if (!entry.dirty()) {
    DropHostCopy(entry);
    return;
  }
  SetLeaving(entry, true);
  if (!StartHash(entry)) dirty_.push_back(&entry);
}

std::vector<EvictionCandidate> Mover::Evictable(int64_t limit) {
  std::vector<EvictionCandidate> candidates;
  const size_t count = residents_.size();
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<int64_t>(candidates.size()) >= limit) break;
    const size_t index = (resident_hand_ + i) % count;
    const TensorEntry& entry = *residents_[index];
    if (!entry.idle() || entry.leaving || !entry.write_error.ok()) continue;
    if (entry.dirty() && entry.path < 0) continue;  // nowhere to go
    candidates.push_back({entry.id, entry.extent.size_bytes, NextUse(entry)});
  }
  if (count > static_cast<size_t>(limit)) {
    resident_hand_ = (resident_hand_ + static_cast<size_t>(limit)) % count;
  }
  return candidates;
}

int64_t Mover::NextUse(const TensorEntry& entry) const {
  auto queue = queues_.find(entry.queue);
  if (queue == queues_.end() || !queue->second->trace.has_replay()) {
    return kUnknownUse;
  }
  return queue->second->trace.NextUse(entry.id);
}

void Mover::ServeOpens(absl::Time now) {
  while (!opens_.empty()) {
    PendingOpen& open = opens_.front();
    bool hope = false;
    absl::StatusOr<Extent> range = MakeWindowRoom(open.bytes, &hope);
    if (!range.ok()) {
      if (hope && now < open.message.deadline) break;
      RefuseOpen(open);
      opens_.pop_front();
      continue;
    }
    auto queue = std::make_unique<Queue>();
    queue->id = next_queue_++;
    queue->port = std::make_shared<QueuePort>();
    queue->window = NewWindow();
    Window& window = windows_[queue->window];
    window.range = *range;
    window.stride = ResidentBytes(open.message.slot_bytes);
    window.owners.resize(open.message.slots);
    window.quarantined.resize(open.message.slots);
    window.open = true;
    open.message.reply->Set(OpenedQueue{queue->id, queue->port});
    open_queues_.push_back(queue.get());
    queues_[queue->id] = std::move(queue);
    opens_.pop_front();
  }
  // Those behind one that waits end at their own deadlines.
  std::erase_if(opens_, [this, now](const PendingOpen& open) {
    const bool late = now >= open.message.deadline;
    if (late) RefuseOpen(open);
    return late;
  });
}

void Mover::RefuseOpen(const PendingOpen& open) {
  const absl::Status unwritten = Unwritten();
  open.message.reply->Set(WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(
          "a window of ", open.bytes, " bytes: ", space_.free_bytes(), " of ",
          space_.capacity_bytes(), " are free, ", space_.largest_free_bytes(),
          " of them in one part, and what is between could not be moved out "
          "in time; held: ",
          Holders(), absl::string_view(unwritten.message()))),
      IoFaultOf(unwritten)));
}

// The index of a window that is not in use.
int Mover::NewWindow() {
  if (free_windows_.empty()) {
    windows_.emplace_back();
    return static_cast<int>(windows_.size()) - 1;
  }
  const int window = free_windows_.back();
  free_windows_.pop_back();
  windows_[window] = Window();
  return window;
}

// Evicts until the range is free: what is missing first, as much as all of it
// only if what is then free is in parts. `hope`: more may come later. Who was
// seen off is waited for before others are chosen, so that all residents are
// looked at once a batch and not once a write-back.
absl::StatusOr<Extent> Mover::MakeWindowRoom(int64_t bytes, bool* hope) {
  while (true) {
    absl::StatusOr<Extent> range = space_.Allocate(bytes);
    if (range.ok()) return range;
    if (leaving_ > 0) {
      *hope = true;
      return range;
    }
    const int64_t free_before = space_.free_bytes();
    const std::vector<EvictionCandidate> candidates =
        Evictable(static_cast<int64_t>(residents_.size()));
    std::vector<TensorId> victims;
    const int64_t missing = bytes - free_before;
    eviction_->PickVictims(missing > 0 ? missing : bytes, /*newcomer_use=*/0,
                           /*must=*/true, candidates, &victims);
    for (TensorId id : victims) Evict(*table_.Find(id));
    if (space_.free_bytes() != free_before) continue;  // clean ones went
    // Pinned or moving ones may be had later.
    *hope = quarantined_bytes_ > 0;
    for (const TensorEntry* entry : residents_) {
      if (!entry->idle() || entry->leaving) *hope = true;
    }
    if (!closing_windows_.empty()) *hope = true;
    // So may the room of open windows, if they are all that is between.
    if (!*hope) *hope = HasRoomWithoutWindows(bytes);
    return range;
  }
}

// Whether the residents leave a range of so many bytes between them.
bool Mover::HasRoomWithoutWindows(int64_t bytes) const {
  std::vector<Extent> taken;
  for (const TensorEntry* entry : residents_) taken.push_back(entry->extent);
  taken.push_back({space_.capacity_bytes(), 0});
  std::sort(taken.begin(), taken.end(), [](const Extent& a, const Extent& b) {
    return a.offset < b.offset;
  });
  int64_t end = 0;
  for (const Extent& each : taken) {
    if (each.offset - end >= bytes) return true;
    end = each.end();
  }
  return false;
}

void Mover::CloseEmptyWindows() {
  std::erase_if(closing_windows_, [this](int index) {
    Window& window = windows_[index];
    bool empty = true;
    for (size_t slot = 0; slot < window.owners.size(); ++slot) {
      TensorEntry* owner = window.owners[slot];
      if (owner != nullptr && owner->idle() && !owner->dirty()) {
        DropHostCopy(*owner);
        owner = nullptr;
      }
      if (owner != nullptr || window.quarantined[slot]) empty = false;
    }
    if (!empty) return false;
    space_.Free(window.range);
    window.open = false;
    free_windows_.push_back(index);
    return true;
  });
}

}  // namespace terrace
