#include "libtorch/hook/managed_storages.h"

#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/hook/collective_calls.h"
#include "libtorch/hook/collectives.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/list_calls.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/hook/storage_check.h"

namespace terrace {
namespace {

std::shared_ptr<ManagedStorage> Managed(const StorageLives::Storage& storage) {
  return std::static_pointer_cast<ManagedStorage>(storage);
}

}  // namespace

ManagedStorages::ManagedStorages(Runtime& runtime,
                                 const ByteWindowOptions& options,
                                 std::shared_ptr<DeviceWork> device)
    : patience_(options.patience),
      work_(std::move(device)),
      device_(work_ == nullptr ? c10::Device(c10::kCPU) : work_->device()),
      window_(runtime, options),
      lives_(OperationNet::Get(), window_) {
  ListenToCollectives();
  if (work_ != nullptr) ListenToListCalls();
}

ManagedStorages::~ManagedStorages() = default;

absl::Status ManagedStorages::CheckProcess() const {
  if (process_.IsCurrent()) return absl::OkStatus();
  return absl::CancelledError("a forked child has none of its parent's bytes");
}

absl::Status ManagedStorages::CheckOpen() const {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  if (!lives_.closed()) return absl::OkStatus();
  return absl::FailedPreconditionError("the hook is closed");
}

absl::StatusOr<std::shared_ptr<ManagedStorage>> ManagedStorages::Settled(
    const NamedTensor& tensor) const {
  const OperationNet& net = OperationNet::Get();
  while (ManagedStorage* const found = net.Find(tensor.tensor)) {
    if (&found->owner() != this) {  // its bytes may be away
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor '", tensor.name, "' is managed by another hook"));
    }
    if (std::shared_ptr<ManagedStorage> managed = Find(tensor.tensor)) {
      return managed;
    }
    OperationPins::AwaitLife(*found);
  }
  return nullptr;
}

absl::StatusOr<StorageLives::Storages> ManagedStorages::Choose(
    absl::Span<const NamedTensor> tensors, const ManagedStorage* parameter) {
  StorageLives::Storages chosen;
  absl::flat_hash_map<const void*, std::shared_ptr<ManagedStorage>> made;
  for (const NamedTensor& each : tensors) {
    const auto& [name, tensor] = each;
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<ManagedStorage> found,
                             Settled(each));
    if (found != nullptr) continue;
    const std::string fault =
        tensor.defined() ? FaultOf(tensor, device_, window_.room().most_bytes())
                         : "is undefined";
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' ", fault));
    }
    c10::StorageImpl& storage = *StorageOf(tensor);
    if (storage.nbytes() == 0) continue;
    std::shared_ptr<ManagedStorage>& one = made[&storage];
    if (one == nullptr) {
      TERRACE_RETURN_IF_ERROR(Materialize(name, storage));
      one = std::make_shared<ManagedStorage>(name, storage, window_,
                                             shared_from_this(), work_);
      if (parameter != nullptr) one->SetGradientOf(*parameter);
      chosen.push_back(one);
    }
  }
  return chosen;
}

absl::Status ManagedStorages::Add(absl::Span<const NamedTensor> tensors,
                                  const ManagedStorage* parameter) {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || Find(tensor) != nullptr) {
      continue;
    }
    // The tensor's memory, which an update may write or read, ends here.
    TERRACE_RETURN_IF_ERROR(OperationNet::Get().Await(tensor.storage(),
                                                      /*is_written=*/true));
    TERRACE_RETURN_IF_ERROR(
        Collectives::Get().CheckUnused(name, *StorageOf(tensor)));
  }
  return AddNow(tensors, parameter);
}

absl::Status ManagedStorages::AddNow(absl::Span<const NamedTensor> tensors,
                                     const ManagedStorage* parameter) {
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  Sweep();
  absl::Status added = absl::AbortedError("");
  while (absl::IsAborted(added)) {  // another thread chose the same
    TERRACE_ASSIGN_OR_RETURN(const StorageLives::Storages storages,
                             Choose(tensors, parameter));
    // What was given to any stream with the tensors' own blocks ends first.
    if (work_ != nullptr && parameter == nullptr && !storages.empty()) {
      TERRACE_RETURN_IF_ERROR(work_->AwaitAll());
    }
    added = storages.empty() ? absl::OkStatus() : lives_.Add(storages);
  }
  return added;
}

absl::StatusOr<std::shared_ptr<ManagedStorage>> ManagedStorages::AddNumbered(
    const NamedTensor& tensor, int64_t number, int64_t most_bytes) {
  if (!CheckProcess().ok() || lives_.closed()) return nullptr;
  Sweep();
  if (!FaultOf(tensor.tensor, device_, most_bytes).empty()) return nullptr;
  c10::StorageImpl& impl = *StorageOf(tensor.tensor);
  if (!IsOrdinary(impl) || OperationNet::Get().Find(&impl) != nullptr ||
      !OperationNet::Get().IsFree(tensor.tensor.storage(),
                                  /*is_written=*/true) ||
      !Collectives::Get().CheckUnused(tensor.name, impl).ok()) {
    return nullptr;
  }
  auto storage = std::make_shared<ManagedStorage>(tensor.name, impl, window_,
                                                  shared_from_this(), work_);
  storage->SetNumber(number);
  const absl::Status added = lives_.Add({storage}, /*are_pinned=*/true);
  // The hook is closed, or another thread saves the same tensor.
  const bool is_anothers =
      absl::IsFailedPrecondition(added) || absl::IsAborted(added);
  if (is_anothers) return nullptr;
  // All that hold pins wait, and it stays where it is.
  if (IsNoRoom(added)) return nullptr;
  TERRACE_RETURN_IF_ERROR(added);
  if (number >= 0) {
    OperationNet::KeepUntilEnd(*storage);
  } else {
    OperationPins::Unpin(*storage);
  }
  return storage;
}

std::shared_ptr<ManagedStorage> ManagedStorages::Find(
    const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) {
    return nullptr;
  }
  return Managed(lives_.Find(StorageOf(tensor)));
}

void ManagedStorages::FetchAhead(
    absl::Span<const std::shared_ptr<ManagedStorage>> storages) {
  std::vector<const WindowTensor*> tensors;
  for (const auto& each : storages) tensors.push_back(each.get());
  window_.FetchAhead(tensors);
}

std::shared_ptr<ManagedStorage> ManagedStorages::Pin(const at::Tensor& tensor) {
  while (ManagedStorage* const found = OperationNet::Get().Find(tensor)) {
    if (&found->owner() != this) return nullptr;
    const bool holds_pins = OperationPins::ThreadHoldsPins();
    if (found->word().Pin(holds_pins).has_value()) return found->self();
    OperationPins::AwaitLife(*found);
  }
  return nullptr;
}

void ManagedStorages::EndLease(ManagedStorage& storage) {
  if (storage.is_parents()) return;  // any lock of it may be held for ever
  if (storage.is_on_device()) storage.NoteLease();
  lives_.EndLease(storage);
  OperationPins::Unpin(storage);
}

absl::Status ManagedStorages::Retry() {
  TERRACE_RETURN_IF_ERROR(CheckProcess());
  window_.Retry();
  return absl::OkStatus();
}

void ManagedStorages::OnGone(std::shared_ptr<ManagedStorage> storage) {
  if (!CheckProcess().ok()) return;
  lives_.NoteDied(std::move(storage));
  Sweep();
}

ManagedStorages::Storages ManagedStorages::All() const {
  Storages all;
  for (const auto& each : lives_.All()) all.push_back(Managed(each));
  return all;
}

absl::Status ManagedStorages::Close(bool restore) {
  if (const absl::Status process = CheckProcess(); !process.ok()) {
    EndChild();
    return process;
  }
  Collectives::Get().AwaitEnd(window_, absl::Now() + patience_);
  // Updates that go on have tensors in use.
  if (OperationGate* const gate = OperationNet::Get().gate()) {
    gate->AwaitEverything();
  }
  for (const auto& storage : All()) {
    if (storage->word().pinned()) {
      TERRACE_RETURN_IF_ERROR(
          Collectives::Get().CheckUnused(storage->name(), *storage->key()));
    }
  }
  StorageLives::CloseOptions options = {.restore = restore};
  // Tensors of this thread's own operations are in use until these end.
  if (OperationPins::ThreadHoldsPins()) options.patience = absl::ZeroDuration();
  const absl::Status status = lives_.Close(options);
  if (!lives_.closed()) return status;
  // The hook is closed all the same.
  if (!absl::IsFailedPrecondition(status)) return status;
  return Reworded(status, absl::StatusCode::kAborted, status.message());
}

void ManagedStorages::EndChild() {
  OperationNet::Get().ForEachInChild([this](ManagedStorage& storage) {
    if (&storage.owner() == this) storage.RefuseInChild();
  });
  lives_.EndChild();
}

std::vector<BlockedOn> ManagedStorages::blocked() const {
  std::vector<BlockedOn> blocked;
  for (const auto& storage : All()) {
    if (storage->blocked() == absl::ZeroDuration()) continue;
    if (storage->number() >= 0) continue;
    blocked.push_back({storage->name(), storage->blocked()});
  }
  absl::c_sort(blocked, [](const BlockedOn& a, const BlockedOn& b) {
    return std::tie(b.duration, a.tensor) < std::tie(a.duration, b.tensor);
  });
  return blocked;
}

}  // namespace terrace
