#include "libtorch/hook/managed_storage.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/accelerator/raw_copy.h"
#include "libtorch/hook/compat.h"

namespace terrace {
namespace {

c10::weak_intrusive_ptr<c10::StorageImpl> WeakOf(c10::StorageImpl& storage) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
}

}  // namespace

ManagedStorage::ManagedStorage(std::string name, c10::StorageImpl& storage,
                               ByteWindow& window,
                               std::shared_ptr<StorageOwner> owner,
                               std::shared_ptr<DeviceWork> device)
    : StorageLife(std::move(name), &storage,
                  static_cast<int64_t>(storage.nbytes()), window),
      key_(&storage),
      storage_(WeakOf(storage)),
      owner_(std::move(owner)),
      device_(std::move(device)),
      uses_(device_ == nullptr ? nullptr : std::make_unique<StreamUses>()) {}

void ManagedStorage::OnDeath(void* self) {
  // In a forked child the storage stays for ever, as a lock of its owner's may
  // be held for ever.
  if (static_cast<ManagedStorage*>(self)->is_parents()) return;
  // The object may end with its last reference, which the owner gets: this
  // function touches only its own copies after that.
  std::shared_ptr<ManagedStorage> storage =
      std::move(static_cast<ManagedStorage*>(self)->self_);
  storage->MarkGone();
  const std::shared_ptr<StorageOwner> owner = storage->owner_;
  owner->OnGone(std::move(storage));
}

bool ManagedStorage::IsOurs(c10::StorageImpl& storage) const {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get_deleter() == &OnDeath && data.get_context() == this &&
         storage.nbytes() == static_cast<size_t>(size_bytes());
}

c10::DataPtr ManagedStorage::Ours(std::byte* data) {
  return {data, this, &OnDeath,
          device_ == nullptr ? c10::Device(c10::DeviceType::CPU)
                             : device_->device()};
}

void ManagedStorage::NoteStream() { device_->NoteUse(*uses_); }

void ManagedStorage::NoteStream(const c10::Stream& stream) {
  if (stream.device() == device_->device()) {
    return device_->NoteUse(*uses_, stream.id());
  }
  // One of another device has no events here: it is waited for.
  Guarded(stream.device(), [&] { stream.synchronize(); }).IgnoreError();
}

void ManagedStorage::NoteLease() { device_->NoteLease(*uses_); }

absl::Status ManagedStorage::AwaitUses() {
  if (device_ == nullptr) return absl::OkStatus();
  const absl::Status status = device_->Await(*uses_);
  return status.ok() ? status : Reworded(status, Told(status.message()));
}

absl::Status ManagedStorage::CopyIn(std::byte* target,
                                    const std::byte* source) {
  if (device_ == nullptr) return WindowTensor::CopyIn(target, source);
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  // Its own block ends with the Install that follows.
  const c10::DataPtr* const block =
      storage && self_ == nullptr ? &storage->_mutable_data_ptr_no_checks()
                                  : nullptr;
  const absl::Status copied =
      device_->Fill(target, source, size_bytes(), *uses_, block);
  return copied.ok() ? copied : Reworded(copied, Told(copied.message()));
}

void ManagedStorage::AfterUses(AfterUse end) {
  if (device_ == nullptr) return end(absl::OkStatus(), /*is_over=*/true);
  device_->After(*uses_, [end = std::move(end), told = Told("")](
                             const EventThread::Ended& ended) mutable {
    const absl::Status& error = ended.error;
    end(error.ok() ? error
                   : Reworded(error, absl::StrCat(told, error.message())),
        ended.is_over);
  });
}

absl::StatusOr<c10::DataPtr> ManagedStorage::Allocate() {
  if (device_ != nullptr) return AllocateRaw(device_->device(), size_bytes());
  try {
    return c10::GetCPUAllocator()->allocate(static_cast<size_t>(size_bytes()));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
}

void ManagedStorage::Set(c10::StorageImpl& storage, c10::DataPtr data) {
  c10::DataPtr& old = storage._mutable_data_ptr_no_checks();
  if (old.get_deleter() == &OnDeath && old.get_context() == this) {
    // An exchange of bytes is no death of the storage.
    static_cast<void>(old.release_context());
  }
  storage.set_data_ptr_noswap(std::move(data));
}

bool ManagedStorage::Install(std::byte* data) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone()) return false;
  c10::DataPtr before;  // ends without the lock
  if (self_ == nullptr) {
    self_ = self();  // the first time: in place of LibTorch's own
    before = std::move(storage->_mutable_data_ptr_no_checks());
  } else if (!IsOurs(*storage)) {
    return false;
  }
  OrderedLock lock(mutex_);
  Set(*storage, Ours(data));
  SetMessage(*storage);
  return true;
}

bool ManagedStorage::TakeAway() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone() || !IsOurs(*storage)) return false;
  OrderedLock lock(mutex_);
  Set(*storage, Ours(nullptr));
  SetMessage(*storage);
  return true;
}

void ManagedStorage::SetMessage(c10::StorageImpl& storage) {
  if (!barred_.empty()) {
    Arm(storage, barred_);
  } else if (kTellsAway && data() == nullptr) {
    Arm(storage,
        absl::StrCat("terrace: '", name(), "' ", FormatBytes(size_bytes()),
                     ": its bytes are not in memory; operations bring them, "
                     "other readers need a lease"));
  } else {
    Disarm(storage);
  }
}

void ManagedStorage::Bar(std::string why) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone()) return;
  OrderedLock lock(mutex_);
  barred_ = std::move(why);
  Arm(*storage, barred_);
}

void ManagedStorage::Unbar() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone()) return;
  OrderedLock lock(mutex_);
  barred_.clear();
  SetMessage(*storage);
}

void ManagedStorage::Refuse(const std::string& text) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone() || !IsOurs(*storage)) return;
  OrderedLock lock(mutex_);
  Arm(*storage, text);
}

absl::Status ManagedStorage::MoveOut() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone() || !IsOurs(*storage)) return absl::OkStatus();
  absl::StatusOr<c10::DataPtr> memory = Allocate();
  if (!memory.ok()) {
    return Reworded(memory.status(),
                    Told(absl::StrCat("no memory to bring it to: ",
                                      memory.status().message())));
  }
  auto* const target = static_cast<std::byte*>(memory->mutable_get());
  if (device_ == nullptr) {
    std::memcpy(target, data(), static_cast<size_t>(size_bytes()));
  } else {
    const absl::Status copied =
        device_->CopyOut(target, data(), size_bytes(), *uses_);
    if (!copied.ok()) return Reworded(copied, Told(copied.message()));
  }
  Set(*storage, *std::move(memory));
  self_.reset();  // held by the caller as well
  return absl::OkStatus();
}

void ManagedStorage::RefuseInChild() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || gone() || !IsOurs(*storage)) return;
  Set(*storage, Ours(nullptr));
  Arm(*storage,
      absl::StrCat("terrace: '", name(), "' ", FormatBytes(size_bytes()),
                   ": a forked child has none of its parent's bytes"));
}

}  // namespace terrace
