#include "runtime/torch/hook/managed_storages.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/hook/collective_calls.h"
#include "runtime/torch/hook/collectives.h"
#include "runtime/torch/hook/operation_net.h"
#include "runtime/torch/hook/storage_check.h"

namespace terrace {
namespace {

// That no Work of a process group goes on with it.
absl::Status CheckUnused(absl::string_view name,
                         const c10::StorageImpl& storage) {
  const std::string user = Collectives::Get().UserOf(storage);
  if (user.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor '", name, "' is in use by ", user,
                   ", which goes on; wait() for its Work first"));
}

// By any hook.
bool IsManaged(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->has_storage() &&
         OperationNet::Get().Find(StorageOf(tensor)) != nullptr;
}

}  // namespace

ManagedStorages::ManagedStorages(Runtime& runtime,
                                 const ByteWindowOptions& options)
    : process_(getpid()),
      patience_(options.patience),
      window_(runtime, options) {
  ListenToCollectives();
}

ManagedStorages::~ManagedStorages() = default;

absl::StatusOr<ManagedStorages::Storages> ManagedStorages::Choose(
    absl::Span<const NamedTensor> tensors) {
  Storages chosen;
  absl::flat_hash_map<const void*, std::shared_ptr<ManagedStorage>> made;
  for (const auto& [name, tensor] : tensors) {
    if (const std::shared_ptr<ManagedStorage> found = Find(tensor)) {
      found->NoteTensor(tensor);
      continue;
    }
    if (IsManaged(tensor)) {  // it may be cold
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", name, "' is managed by another hook"));
    }
    const std::string fault = tensor.defined()
                                  ? FaultOf(tensor, window_.room().most_bytes())
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
                                             shared_from_this());
      chosen.push_back(one);
    }
    one->NoteTensor(tensor);
  }
  return chosen;
}

absl::Status ManagedStorages::Add(absl::Span<const NamedTensor> tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || Find(tensor) != nullptr) {
      continue;
    }
    // Its memory ends here, which an update may write or read.
    TERRACE_RETURN_IF_ERROR(OperationNet::Get().Await(tensor.storage(),
                                                      /*is_written=*/true));
    TERRACE_RETURN_IF_ERROR(CheckUnused(name, *StorageOf(tensor)));
  }
  return AddNow(tensors);
}

absl::Status ManagedStorages::AddNow(absl::Span<const NamedTensor> tensors) {
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the hook is closed");
  }
  Sweep();
  TERRACE_ASSIGN_OR_RETURN(const Storages storages, Choose(tensors));
  if (storages.empty()) return absl::OkStatus();
  std::vector<WindowTensor*> added;
  for (const auto& storage : storages) added.push_back(storage.get());
  TERRACE_RETURN_IF_ERROR(window_.Add(added));
  const absl::Status filled = Fill(storages);
  if (filled.ok()) return filled;
  std::string lost;
  for (const auto& storage : storages) {
    if (OperationNet::Get().Find(storage->key()) == nullptr) {
      window_.Remove(*storage);  // it has the bytes that it had
    } else if (!LetGo(*storage, /*restore=*/true).ok()) {
      absl::StrAppend(&lost, lost.empty() ? "; lost on the way back: " : ", ",
                      "'", storage->name(), "'");
    }
  }
  if (lost.empty()) return filled;
  return Reworded(filled, absl::StrCat(filled.message(), lost));
}

absl::StatusOr<std::shared_ptr<ManagedStorage>> ManagedStorages::AddNumbered(
    const NamedTensor& tensor, int64_t number, int64_t most_bytes) {
  {
    MutexLock lock(mutex_);
    if (closed_) return nullptr;
  }
  Sweep();
  if (!FaultOf(tensor.tensor, most_bytes).empty()) return nullptr;
  c10::StorageImpl& impl = *StorageOf(tensor.tensor);
  if (!IsOrdinary(impl) || OperationNet::Get().Find(&impl) != nullptr ||
      !OperationNet::Get().IsFree(tensor.tensor.storage(),
                                  /*is_written=*/true) ||
      !CheckUnused(tensor.name, impl).ok()) {
    return nullptr;
  }
  auto storage = std::make_shared<ManagedStorage>(tensor.name, impl, window_,
                                                  shared_from_this());
  storage->SetNumber(number);
  TERRACE_RETURN_IF_ERROR(window_.Add({storage.get()}));
  storage->word().Pin();
  const absl::Status filled = Fill({storage});
  if (!filled.ok()) {
    storage->word().Unpin();
    window_.Remove(*storage);
    return filled;
  }
  OperationNet::KeepUntilEnd(*storage);
  return storage;
}

absl::Status ManagedStorages::Fill(const Storages& storages) {
  for (const auto& storage : storages) {
    TERRACE_RETURN_IF_ERROR(window_.Fill(*storage, storage->data()));
    OperationNet::Get().Insert(storage->key(), storage.get());
    MutexLock lock(mutex_);
    storages_.emplace(storage->key(), storage);
  }
  return absl::OkStatus();
}

std::shared_ptr<ManagedStorage> ManagedStorages::Find(
    const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) {
    return nullptr;
  }
  MutexLock lock(mutex_);
  const auto found = storages_.find(StorageOf(tensor));
  return found == storages_.end() ? nullptr : found->second;
}

absl::Status ManagedStorages::Replace(ManagedStorage& storage,
                                      at::Tensor tensor) {
  const std::string name = storage.name();
  c10::StorageImpl& old = *storage.key();  // the tensor's
  std::vector<NamedTensor> tensors = {{name, tensor}};
  for (at::Tensor& each : storage.Tensors()) tensors.push_back({name, each});
  TERRACE_RETURN_IF_ERROR(window_.MoveOut(storage));
  Erase(storage);
  c10::DataPtr bytes = std::exchange(old._mutable_data_ptr_no_checks(), {});
  const c10::Storage other(c10::Storage::use_byte_size_t(), old.nbytes(),
                           std::move(bytes), old.allocator(), old.resizable());
  for (const NamedTensor& each : tensors) {
    each.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(other);
  }
  const absl::Status managed = AddNow(tensors);
  if (const std::shared_ptr<ManagedStorage> now = Find(tensor)) {
    now->NoteBlocked(storage.blocked());
  }
  MutexLock lock(mutex_);
  if (managed.ok() || closed_) return absl::OkStatus();
  NoteError(Reworded(managed,
                     absl::StrCat("terrace: '", name,
                                  "' could not be taken over again, and stays "
                                  "in ordinary memory: ",
                                  managed.message())));
  return absl::OkStatus();
}

void ManagedStorages::ReplaceLater(std::shared_ptr<ManagedStorage> storage,
                                   std::vector<WeakTensor> tensors) {
  replacements_.Add(std::move(storage), tensors);
  ReplaceUnused();
}

void ManagedStorages::OnGone(std::shared_ptr<ManagedStorage> storage) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    gone_.push_back(std::move(storage));
  }
  Sweep();
}

void ManagedStorages::Sweep() {
  Storages gone;
  {
    MutexLock lock(mutex_);
    if (closed_ || gone_.empty()) return;
    gone.swap(gone_);
    ++sweeping_;
  }
  Storages left;
  for (std::shared_ptr<ManagedStorage>& storage : gone) {
    if (window_.Remove(*storage)) {
      Erase(*storage);
    } else {
      left.push_back(std::move(storage));  // an operation has it still
    }
  }
  MutexLock lock(mutex_);
  gone_.insert(gone_.end(), left.begin(), left.end());
  --sweeping_;
  swept_.SignalAll();
}

void ManagedStorages::Erase(const ManagedStorage& storage) {
  OperationNet::Get().Erase(storage.key());
  std::shared_ptr<ManagedStorage> last;  // it ends without the lock
  MutexLock lock(mutex_);
  const auto found = storages_.find(storage.key());
  if (found == storages_.end()) return;
  last = std::move(found->second);
  storages_.erase(found);
  // A thread that has just found it may be about to pin it, for as long as its
  // storage lives.
  std::erase_if(retired_, [](const auto& each) { return each->expired(); });
  if (!last->expired()) retired_.push_back(last);
}

ManagedStorages::Storages ManagedStorages::All() const {
  Storages all;
  MutexLock lock(mutex_);
  for (const auto& [key, storage] : storages_) all.push_back(storage);
  return all;
}

absl::Status ManagedStorages::LetGo(ManagedStorage& storage, bool restore,
                                    bool waits) {
  absl::Status status;
  if (restore && !storage.gone()) {
    status = window_.MoveOut(storage);
    if (status.ok()) {
      Erase(storage);
      return status;
    }
    if (waits && absl::IsResourceExhausted(status)) return status;
  }
  const char* const why =
      status.ok() ? "the hook is closed"
                  : "the hook is closed, and its bytes could not be brought";
  if (window_.Refuse(storage, why)) Erase(storage);
  return status;
}

absl::Status ManagedStorages::LetGoAll(bool restore) {
  absl::Status status;
  Storages left = All();
  for (bool waits = restore; !left.empty();) {
    Storages waiting;
    for (std::shared_ptr<ManagedStorage>& storage : left) {
      const absl::Status one = LetGo(*storage, restore, waits);
      if (waits && absl::IsResourceExhausted(one)) {
        waiting.push_back(std::move(storage));
      } else {
        status.Update(one);
      }
    }
    // Where nothing can be written, the room that they lack is the others'.
    waits = waits && waiting.size() < left.size();
    left = std::move(waiting);
  }
  return status;
}

absl::Status ManagedStorages::Close(bool restore) {
  if (process_ != getpid()) {
    EndChild();
    return absl::CancelledError(
        "a forked child has none of its parent's bytes");
  }
  ReplaceUnused();
  Collectives::Get().AwaitEnd(window_, absl::Now() + patience_);
  // Updates that go on have tensors in use, and would find others.
  if (OperationGate* const gate = OperationNet::Get().gate()) {
    gate->AwaitEverything();
  }
  Sweep();
  TERRACE_ASSIGN_OR_RETURN(const bool is_first, BeginClose());
  if (!is_first) return absl::OkStatus();
  const absl::Status status = LetGoAll(restore);
  replacements_.Clear();
  Storages gone;  // ends without the lock
  {
    MutexLock lock(mutex_);
    gone.swap(gone_);
    std::move(retired_.begin(), retired_.end(), std::back_inserter(gone));
    retired_.clear();
    closing_ = std::thread::id();
    swept_.SignalAll();
  }
  // It is closed all the same.
  if (!absl::IsFailedPrecondition(status)) return status;
  return Reworded(status, absl::StatusCode::kAborted, status.message());
}

absl::StatusOr<bool> ManagedStorages::BeginClose() {
  MutexLock lock(mutex_);
  if (closed_) {
    // By another thread perhaps, which has not done with it.
    while (closing_ != std::thread::id() &&
           closing_ != std::this_thread::get_id()) {
      swept_.Wait(mutex_);
    }
    return false;
  }
  for (const auto& [key, storage] : storages_) {
    if (storage->word().pinned() && !storage->gone()) {
      TERRACE_RETURN_IF_ERROR(CheckUnused(storage->name(), *storage->key()));
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", storage->name(), "' is leased or in use"));
    }
  }
  closed_ = true;
  closing_ = std::this_thread::get_id();
  while (sweeping_ > 0) swept_.Wait(mutex_);
  return true;
}

void ManagedStorages::EndChild() {
  Storages all = All();
  for (const auto& storage : all) storage->RefuseInChild();
  MutexLock lock(mutex_);
  closed_ = true;
}

int64_t ManagedStorages::count() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(storages_.size());
}

int64_t ManagedStorages::size_bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [key, storage] : storages_) bytes += storage->size_bytes();
  return bytes;
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
