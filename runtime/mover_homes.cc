// Homes: which path a tensor lives on, from its registration to its end.
#include <utility>

#include "absl/strings/str_cat.h"
#include "policies/placement.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"

namespace terrace {

void Mover::Handle(RegisterMessage& message) {
  if (closing_) {
    message.reply->Set(Closed());
    return;
  }
  const int64_t bytes = ResidentBytes(message.spec.size_bytes);
  absl::StatusOr<TensorEntry*> added = table_.Add(message.spec);
  if (!added.ok()) {
    message.reply->Set(added.status());
    return;
  }
  TensorEntry& entry = **added;
  std::vector<PathLoad> loads;
  for (size_t i = 0; i < disks_.size(); ++i) {
    loads.push_back({disks_[i]->used_bytes(), 1.0, !degraded_[i]});
  }
  absl::Status refused = absl::OkStatus();
  for (int path = ChoosePath(loads, bytes); path >= 0;
       path = ChoosePath(loads, bytes)) {
    absl::StatusOr<Extent> home = disks_[path]->Allocate(bytes);
    if (home.ok()) {
      entry.path = path;
      entry.home = *home;
      break;
    }
    refused = home.status();
    loads[path].usable = false;
  }
  if (entry.path < 0 && !disks_.empty()) {
    table_.TakeBack(entry);
    message.reply->Set(refused.ok() ? absl::UnavailableError("no usable path")
                                    : refused);
    return;
  }
  message.reply->Set(entry.id);
}

void Mover::Handle(UnregisterMessage& message) {
  if (closing_) {
    message.reply->Set(Closed());
    return;
  }
  unregisters_.push_back({std::move(message), nullptr, inbox_->posted()});
}

void Mover::ServeUnregisters() {
  std::erase_if(unregisters_, [this](PendingUnregister& pending) {
    return ServeUnregister(pending);
  });
}

// True when nothing is left to do. Once nobody wants the tensor its own
// transfers end, and it is gone; a late one of them keeps the home.
bool Mover::ServeUnregister(PendingUnregister& pending) {
  if (pending.entry == nullptr && !BeginUnregister(pending)) {
    return pending.message.reply == nullptr;
  }
  TensorEntry& entry = *pending.entry;
  const bool moving = entry.host == HostState::kLoading ||
                      entry.host == HostState::kVerifying ||
                      entry.write != WriteState::kIdle;
  if (moving) return false;
  if (!entry.quarantined) DropHostCopy(entry);
  if (pending.message.reply != nullptr) {
    table_.FreeName(entry);
    std::exchange(pending.message.reply, nullptr)->Set(absl::OkStatus());
  }
  for (const auto& [tag, transfer] : transfers_) {
    if (transfer.entry == &entry) return false;
  }
  std::erase(dirty_, &entry);
  std::erase(failed_writes_, &entry);
  if (entry.path >= 0) disks_[entry.path]->Free(entry.home);
  table_.Erase(entry);
  return true;
}

// Whether the tensor may go now. If not, it is refused, or waited for: what a
// closed queue still fetches, or had ready, ends by itself.
bool Mover::BeginUnregister(PendingUnregister& pending) {
  const TensorId tensor = pending.message.tensor;
  TensorEntry* const entry = FindRegistered(tensor);
  absl::Status refused;
  if (entry == nullptr) {
    refused =
        absl::InvalidArgumentError(absl::StrCat("no tensor ", tensor.value));
  } else if (!entry->pinned_by.empty() && processed_ >= pending.after) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("tensor '", entry->spec.name, "' is pinned"));
  } else if (IsWanted(*entry)) {
    refused = absl::FailedPreconditionError(absl::StrCat(
        "tensor '", entry->spec.name, "' is wanted by a group of a queue"));
  }
  if (!refused.ok()) {
    std::exchange(pending.message.reply, nullptr)->Set(refused);
    return false;
  }
  if (entry->pins > 0) return false;
  pending.entry = entry;
  entry->unregistered = true;
  if (entry->host == HostState::kLoading ||
      entry->write == WriteState::kWriting) {
    io_->Cancel(entry->path, entry->io_tag);
  }
  return true;
}

// By a group of an open queue, waiting or admitted.
bool Mover::IsWanted(const TensorEntry& entry) const {
  auto wants = [&entry](const Group& group) {
    for (const Want& want : group.wants) {
      if (want.tensor == entry.id) return true;
    }
    return false;
  };
  for (const Queue* queue : open_queues_) {
    for (const auto& [id, group] : queue->waiting) {
      if (wants(group)) return true;
    }
  }
  for (const auto& [id, admitted] : admitted_) {
    if (!queues_.at(admitted.first)->closed && wants(admitted.second)) {
      return true;
    }
  }
  return false;
}

// Null also for one that is going.
TensorEntry* Mover::FindRegistered(TensorId id) {
  TensorEntry* entry = table_.Find(id);
  return entry == nullptr || entry->unregistered ? nullptr : entry;
}

}  // namespace terrace
