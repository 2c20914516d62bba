#include "libtorch/hook/saved_tensors.h"

#include <malloc.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "libtorch/hook/managed_storages.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {
namespace {

constexpr int64_t kTrimBytes = 32 << 20;

}  // namespace

SavedTensors::SavedTensors(std::shared_ptr<ManagedStorages> storages)
    : storages_(std::move(storages)) {}

SavedTensors::~SavedTensors() { End(); }

void SavedTensors::Begin(int64_t most_bytes) {
  OrderedLock lock(mutex_);
  if (has_ended_) return;
  if (!hook_.has_value()) hook_.emplace();
  if (most_bytes_ == 0) OperationNet::Get().BeginListening();
  most_bytes_ = most_bytes;
}

void SavedTensors::End() {
  OrderedLock lock(mutex_);
  if (most_bytes_ > 0) OperationNet::Get().EndListening();
  most_bytes_ = 0;
  has_ended_ = true;
}

absl::StatusOr<bool> SavedTensors::Add(const at::Tensor& tensor) {
  Saved saved;
  std::string name;
  int64_t most_bytes = 0;
  {
    OrderedLock lock(mutex_);
    if (most_bytes_ == 0 || !OperationNet::IsSeen()) return false;
    while (!saved_.empty() && saved_.back().storage.expired()) {
      saved_.pop_back();
    }
    most_bytes = most_bytes_;
    saved.number = next_++;
    name = NameOf(saved.number);
    saved.number += hook_->value() * SavingNumber::kOfAHook;
  }
  absl::StatusOr<std::shared_ptr<ManagedStorage>> added =
      storages_->AddNumbered({name, tensor}, saved.number, most_bytes);
  OrderedLock lock(mutex_);
  if (!added.ok()) {
    const absl::Status& why = added.status();
    const absl::Status status = Reworded(
        why, absl::StrCat("'", name, "' ",
                          FormatBytes(static_cast<int64_t>(tensor.nbytes())),
                          ": ", why.message()));
    if (first_error_.ok()) first_error_ = status;
    return status;
  }
  if (*added == nullptr) return false;
  saved.storage = *added;
  saved_.push_back(std::move(saved));
  Trim((*added)->size_bytes());
  return true;
}

std::string SavedTensors::NameOf(int64_t number) const {
  std::string name = absl::StrCat("activation ", number, " of step ", step_);
  if (hook_->value() > 0) absl::StrAppend(&name, ", hook ", hook_->value() + 1);
  return name;
}

void SavedTensors::Trim(int64_t bytes) {
  untrimmed_bytes_ += bytes;
  if (untrimmed_bytes_ < kTrimBytes) return;
  untrimmed_bytes_ = 0;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void SavedTensors::Use(const at::Tensor& tensor) {
  const int64_t most_bytes = storages_->window().bytes_ahead();
  const std::shared_ptr<ManagedStorage> used = storages_->Find(tensor);
  if (used == nullptr || used->number() < 0) return;
  std::vector<std::shared_ptr<ManagedStorage>> before;
  int64_t bytes = 0;
  {
    OrderedLock lock(mutex_);
    Trim(used->size_bytes());
    for (size_t i = most_bytes > 0 ? saved_.size() : 0; i > 0; --i) {
      const Saved& each = saved_[i - 1];
      if (each.number >= used->number()) continue;
      std::shared_ptr<ManagedStorage> storage = each.storage.lock();
      if (storage == nullptr) continue;
      bytes += ResidentBytes(storage->size_bytes());
      if (bytes > most_bytes) break;
      before.push_back(std::move(storage));
    }
  }
  storages_->FetchAhead(before);
}

void SavedTensors::BeginStep() {
  OrderedLock lock(mutex_);
  ++step_;
  next_ = 0;
  saved_.clear();
}

absl::Status SavedTensors::first_error() const {
  OrderedLock lock(mutex_);
  return first_error_;
}

}  // namespace terrace
