// A ManagedStorage is a LibTorch storage whose bytes a ByteWindow moves: they
// come and go by exchanging the DataPtr inside the one StorageImpl, so that
// views, aliases and saved tensors all follow, and version counters stay.
//
// While bytes are here the DataPtr shows them where the Runtime has them
// pinned; while they are away it is null. Both carry our deleter and this
// object, which lives as long as either its owner or the DataPtr refers to it:
// so the hook hears at once of the death of the storage, cold or not, and of
// memory that LibTorch puts in its place (resize_). From LibTorch 2.12 on the
// storage has a message while the bytes are away, so that an access outside an
// operation throws.
//
// On an accelerator the bytes are at an address of the device, which goes on
// after operations have ended: the storage notes the streams on which it was
// used, and its memory is not given up before they have done what they were
// given (stream_rules.h).
//
// The class uses only functions of StorageImpl that check nothing: the others
// throw where a message is on.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/lock_order.h"
#include "libtorch/accelerator/device_work.h"
#include "libtorch/hook/life/storage_life.h"

namespace terrace {

class ByteWindow;
class ManagedStorage;

// An owner hears of storages that need no bytes any more, and of those that
// were refused. It is thread-safe: OnGone is called from wherever the last
// tensor of a storage ends.
class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  virtual void OnGone(std::shared_ptr<ManagedStorage> storage) = 0;
  // An operation was refused one of its storages, and `why` is the reason. The
  // caller holds the locks of late updates (lock_order.h).
  virtual void OnRefused(const absl::Status& why) = 0;
};

class ManagedStorage final : public StorageLife {
 public:
  // The storage must be alive. The window belongs to the owner, and lives as
  // long as the owner. A storage of an accelerator has its `device`.
  ManagedStorage(std::string name, c10::StorageImpl& storage,
                 ByteWindow& window, std::shared_ptr<StorageOwner> owner,
                 std::shared_ptr<DeviceWork> device = nullptr);

  // No other storage has this address while this object lives.
  c10::StorageImpl* key() const { return key_; }
  // Returns true when the storage is gone.
  bool expired() const override { return storage_.expired(); }
  std::byte* data() const override {
    return static_cast<std::byte*>(
        key_->_mutable_data_ptr_no_checks().mutable_get());
  }
  std::shared_ptr<ManagedStorage> self() {
    return std::static_pointer_cast<ManagedStorage>(shared_from_this());
  }

  // From now on until Unbar every use throws this text, wherever the bytes are;
  // the bytes come and go as before.
  void Bar(std::string why);
  void Unbar();
  bool needs_bytes() const override {
    OrderedLock lock(mutex_);
    return barred_.empty();
  }
  // On an accelerator: the calling thread's stream uses the bytes, or the
  // stream that it names does, or a lease of that thread's ends. The caller has
  // the storage pinned, and its bytes are here.
  bool is_on_device() const { return device_ != nullptr; }
  void NoteStream();
  void NoteStream(const c10::Stream& stream);
  void NoteLease();
  // Blocks until the device has done what operations were given with the bytes.
  absl::Status AwaitUses();
  StorageOwner& owner() const { return *owner_; }
  std::shared_ptr<const void> keeper() const override { return owner_; }

  // Only a forked child calls this, on a storage of its parent's (is_parents).
  // The child has nothing of the Runtime, so each use throws from now on,
  // wherever the bytes were. The thread that uses the storage makes the call.
  void RefuseInChild();

 private:
  absl::Status CopyIn(std::byte* target, const std::byte* source) override;
  void AfterUses(AfterUse end) override;
  bool Install(std::byte* data) override;
  bool TakeAway() override;
  void Refuse(const std::string& text) override;
  absl::Status MoveOut() override;

  static void OnDeath(void* self);
  // Returns true while the storage has the DataPtr that this object gave it,
  // with bytes or without, and its size is unchanged.
  bool IsOurs(c10::StorageImpl& storage) const;
  void Set(c10::StorageImpl& storage, c10::DataPtr data);
  c10::DataPtr Ours(std::byte* data);
  // Memory of LibTorch's own for the bytes.
  absl::StatusOr<c10::DataPtr> Allocate();
  // Puts the text of Bar on a storage that is barred. Without a Bar a storage
  // whose bytes are away gets a message that says so, where storages have one
  // (kTellsAway); any other loses its message.
  void SetMessage(c10::StorageImpl& storage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  c10::StorageImpl* const key_;
  // The weak reference keeps the address from being given to another storage.
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const std::shared_ptr<StorageOwner> owner_;
  const std::shared_ptr<DeviceWork> device_;
  const std::unique_ptr<StreamUses> uses_;  // of a device
  std::shared_ptr<ManagedStorage> self_;    // while the DataPtr refers to this
  // The mutex guards the message, which threads other than the word's may
  // change.
  mutable OrderedMutex mutex_{LockRank::kManagedStorage};
  std::string barred_ ABSL_GUARDED_BY(mutex_);  // empty when not barred
};

}  // namespace terrace
