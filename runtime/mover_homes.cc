// Homes: which path a tensor lives on, from its registration to its end.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "policies/placement.h"
#include "runtime/base/io_fault.h"
#include "runtime/mover.h"
#include "terrace/runtime.h"

namespace terrace {

void Mover::Handle(RegisterRequest& message) {
  if (closing_) {
    message.reply->Set(Closed());
    return;
  }
  absl::StatusOr<TensorEntry*> added = table_.Add(message.spec);
  if (!added.ok()) {
    message.reply->Set(added.status());
    return;
  }
  PendingRegister pending;
  pending.message = std::move(message);
  pending.entry = *added;
  pending.entry->unregistered = true;
  pending.refused.assign(meters_.size(), false);
  registers_.push_back(std::move(pending));  // behind who waits already
}

// Who waits for a file goes first when it has grown, in the order they came.
void Mover::ServeRegisters() {
  for (auto pending = registers_.begin(); pending != registers_.end();) {
    pending = FindHome(*pending) ? registers_.erase(pending) : pending + 1;
  }
}

// True when it is answered; else it waits for its path's file to grow, or for a
// write that finds out whether a path takes any again.
bool Mover::FindHome(PendingRegister& pending) {
  TensorEntry& entry = *pending.entry;
  const int64_t bytes = ResidentBytes(entry.spec.size_bytes);
  while (entry.path < 0 && paths_.count() > 0) {
    if (pending.path < 0) pending.path = ChooseHome(pending);
    if (pending.path < 0) {
      if (placement_.trying()) return false;  // a write finds one out
      const absl::Status refused =
          pending.refusal.ok() ? NoPathIsUsable() : pending.refusal;
      table_.TakeBack(entry);
      pending.message.reply->Set(refused);
      return true;
    }
    const int path = pending.path;
    absl::StatusOr<std::optional<Extent>> home =
        paths_.Allocate(path, bytes, /*must=*/true);
    if (!home.ok()) {
      RefuseHome(pending, home.status());
      continue;
    }
    if (!home->has_value()) return false;
    entry.path = path;
    entry.home = **home;
  }
  entry.unregistered = false;
  pending.message.reply->Set(entry.id);
  return true;
}

int Mover::ChooseHome(const PendingRegister& pending) const {
  std::vector<int64_t> placed_bytes;
  std::vector<bool> usable;
  for (int i = 0; i < paths_.count(); ++i) {
    placed_bytes.push_back(paths_.used_bytes(i));
    usable.push_back(!paths_.late(i) && !pending.refused[i]);
  }
  return placement_.ChooseHome(placed_bytes, usable,
                               ResidentBytes(pending.entry->spec.size_bytes));
}

// What each path has against it, which names it; the first one's errno.
absl::Status Mover::NoPathIsUsable() const {
  const absl::Status* first = nullptr;
  std::vector<std::string> reasons;
  for (int i = 0; i < paths_.count(); ++i) {
    const absl::Status& error = meters_[static_cast<size_t>(i)].write_error;
    if (error.ok()) continue;
    if (first == nullptr) first = &error;
    reasons.emplace_back(error.message());
  }
  const std::string message = absl::StrCat("no usable path: all are degraded; ",
                                           absl::StrJoin(reasons, "; "));
  return first == nullptr
             ? absl::UnavailableError(message)
             : Reworded(*first, absl::StatusCode::kUnavailable, message);
}

// The next path is tried; the last one's answer counts, with all messages.
void Mover::RefuseHome(PendingRegister& pending, const absl::Status& status) {
  const std::string others =
      pending.refusal.ok()
          ? ""
          : absl::StrCat("; ", absl::string_view(pending.refusal.message()));
  pending.refusal = Reworded(
      status, absl::StrCat(absl::string_view(status.message()), others));
  pending.refused[static_cast<size_t>(pending.path)] = true;
  pending.path = -1;
}

void Mover::Handle(UnregisterRequest& message) {
  if (closing_) {
    message.reply->Set(Closed());
    return;
  }
  unregisters_.push_back({std::move(message), nullptr, inbox_->posted()});
}

void Mover::ServeUnregisters() {
  for (auto pending = unregisters_.begin(); pending != unregisters_.end();) {
    pending =
        ServeUnregister(*pending) ? unregisters_.erase(pending) : pending + 1;
  }
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
  if (entry.path >= 0) paths_.Free(entry.path, entry.home);
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
  } else if (wanted_.Contains(tensor)) {
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
    io_->Cancel(transfers_.at(entry->io_tag).path, entry->io_tag);
  }
  return true;
}

// Null also for one that is going.
TensorEntry* Mover::FindRegistered(TensorId id) {
  TensorEntry* entry = table_.Find(id);
  return entry == nullptr || entry->unregistered ? nullptr : entry;
}

}  // namespace terrace
