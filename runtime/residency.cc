#include "runtime/residency.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

absl::Status CheckEntry(const TensorEntry& entry) {
  auto broken = [&entry](const char* rule) {
    return absl::InternalError(
        absl::StrCat("tensor '", entry.spec.name, "': ", rule));
  };
  const bool host_valid = entry.host == HostState::kValid;
  const bool home_valid = entry.home_generation != 0;
  if (entry.generation > 0 && entry.loss.ok() && !host_valid &&
      !entry.unregistered && entry.home_generation != entry.generation) {
    return broken("written once, has no valid copy and no DataLoss");
  }
  if (entry.unregistered && entry.pins > 0) {
    return broken("pinned after its end");
  }
  if (entry.write_pinned && entry.pins != 1) {
    return broken("a write pin is not alone");
  }
  if (entry.pins > 0 && entry.host == HostState::kAbsent) {
    return broken("pinned without a host copy");
  }
  if (!entry.pinned_by.empty() && !host_valid) {
    return broken("pinned without a valid copy");
  }
  if (static_cast<int>(entry.pinned_by.size()) > entry.pins) {
    return broken("more queues than pins");
  }
  if (entry.write_pinned && entry.write != WriteState::kIdle) {
    return broken("a transfer runs out of a write pin");
  }
  if (!host_valid && entry.write != WriteState::kIdle) {
    return broken("two transfers at once");
  }
  if (entry.dirty() && home_valid &&
      entry.home_generation >= entry.generation) {
    return broken("a dirty copy above a current one");
  }
  if (entry.write != WriteState::kIdle && entry.target_path < 0) {
    return broken("a transfer out that goes nowhere");
  }
  if (entry.write == WriteState::kIdle && !entry.quarantined &&
      entry.target_path >= 0) {
    return broken("a target of no transfer");
  }
  if (entry.host == HostState::kAbsent && entry.extent.size_bytes != 0) {
    return broken("an extent without a copy");
  }
  if (entry.host != HostState::kAbsent && entry.extent.size_bytes == 0) {
    return broken("a copy without an extent");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorEntry*> ResidencyTable::Add(const TensorSpec& spec) {
  const TensorId id{static_cast<int64_t>(entries_.size())};
  if (!names_.emplace(spec.name, id).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("a tensor named '", spec.name, "' is registered already"));
  }
  entries_.push_back(std::make_unique<TensorEntry>());
  TensorEntry* entry = entries_.back().get();
  entry->spec = spec;
  entry->id = id;
  return entry;
}

void ResidencyTable::TakeBack(const TensorEntry& entry) {
  FreeName(entry);
  if (&entry == entries_.back().get()) {
    entries_.pop_back();
  } else {
    entries_[static_cast<size_t>(entry.id.value)].reset();
  }
}

void ResidencyTable::FreeName(const TensorEntry& entry) {
  const auto found = names_.find(entry.spec.name);
  TERRACE_CHECK(found != names_.end() && found->second == entry.id);
  names_.erase(found);
}

void ResidencyTable::Erase(TensorEntry& entry) {
  TERRACE_CHECK(entry.unregistered && entry.extent.size_bytes == 0);
  entries_[static_cast<size_t>(entry.id.value)].reset();
}

TensorEntry* ResidencyTable::Find(TensorId id) {
  if (id.value < 0 || id.value >= static_cast<int64_t>(entries_.size())) {
    return nullptr;
  }
  return entries_[id.value].get();
}

absl::Status ResidencyTable::CheckInvariants() const {
  for (const auto& entry : entries_) {
    if (entry == nullptr) continue;
    absl::Status status = CheckEntry(*entry);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace terrace
