// A LibTorch storage whose bytes a ByteWindow moves: they come and go by
// exchanging the DataPtr inside the one StorageImpl, so that views, aliases and
// saved tensors all follow, and version counters stay.
//
// While bytes are here the DataPtr shows them where the Runtime has them
// pinned; while they are away it is null. Both carry our deleter and this
// object, which lives as long as either its owner or the DataPtr refers to it:
// so the death of the storage, cold or not, is heard at once, and so is memory
// that LibTorch puts in its place (resize_). Where LibTorch can take a message
// off again, one is on while the bytes are away, so that what does not go
// through an operation throws.
//
// Only functions of StorageImpl that check nothing are used: the others throw
// where a message is on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/life/storage_life.h"

namespace terrace {

class ByteWindow;
class ManagedStorage;

// Hears of storages that need no bytes any more, or that were refused.
// Thread-safe: OnGone is called from wherever the last tensor of one ends.
class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  virtual void OnGone(std::shared_ptr<ManagedStorage> storage) = 0;
  // An operation was refused one of its storages, for that. Called with the
  // locks of late updates held (lock_order.h).
  virtual void OnRefused(const absl::Status& why) = 0;
  // Gives the tensor, which has this storage, and those that are managed with
  // it another one with the same bytes, and takes that over: for one that
  // cannot be used again. What else shares the storage has no bytes then.
  // FailedPrecondition: it is in use; or those of a fetch, and nothing has
  // changed. Where the other one cannot be taken over it stays in ordinary
  // memory, which the hook tells as its error.
  virtual absl::Status Replace(ManagedStorage& storage, at::Tensor tensor) = 0;
  // The same for tensors that share it, as soon as it is not in use: at the
  // latest when a lease ends. What a fetch fails with, the hook tells, and it
  // is tried again at the next such end.
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  virtual void ReplaceLater(std::shared_ptr<ManagedStorage> storage,
                            std::vector<WeakTensor> tensors) = 0;
};

class ManagedStorage final : public StorageLife {
 public:
  // The storage is alive; the window is the owner's, and lives as long.
  ManagedStorage(std::string name, c10::StorageImpl& storage,
                 ByteWindow& window, std::shared_ptr<StorageOwner> owner);

  // Never reused while this lives.
  c10::StorageImpl* key() const { return key_; }
  // Its storage is gone.
  bool expired() const override { return storage_.expired(); }
  std::byte* data() const override {
    return static_cast<std::byte*>(
        key_->_mutable_data_ptr_no_checks().mutable_get());
  }
  std::shared_ptr<ManagedStorage> self() {
    return std::static_pointer_cast<ManagedStorage>(shared_from_this());
  }

  // One that is managed with it. Those that live and have its storage still.
  void NoteTensor(const at::Tensor& tensor);
  // It is referred to no more, until it is noted again.
  void ForgetTensor(const at::Tensor& tensor);
  std::vector<at::Tensor> Tensors() const;

  // Every use throws with this text from now on, wherever the bytes are, though
  // they come and go as before; until Unbar. False there: this LibTorch throws
  // for ever, and the tensors need another storage.
  void Bar(std::string why);
  bool Unbar();
  bool needs_bytes() const override {
    OrderedLock lock(mutex_);
    return barred_.empty();
  }
  // The tensors, which have it, have another storage with its bytes from then
  // on; it has none. Of one that has left.
  void MoveTo(const std::vector<at::Tensor>& tensors);
  void Renew() override;
  StorageOwner& owner() const { return *owner_; }
  std::shared_ptr<const void> keeper() const override { return owner_; }

  // In a forked child (is_parents), which has nothing of the Runtime: whatever
  // the bytes were, each use throws from now on. By the thread that uses it.
  void RefuseInChild();

 private:
  bool Install(std::byte* data) override;
  bool TakeAway() override;
  void Refuse(const std::string& text) override;
  bool Forgive() override;
  absl::Status MoveOut() override;

  static void OnDeath(void* self);
  // The storage has the bytes that this object gave it, or none of it.
  bool IsOurs(c10::StorageImpl& storage) const;
  void Set(c10::StorageImpl& storage, c10::DataPtr data);
  c10::DataPtr Ours(std::byte* data);
  // The message of what is away, where it can be taken off again, or of what is
  // barred; or none.
  void SetMessage(c10::StorageImpl& storage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  c10::StorageImpl* const key_;
  // Keeps the address from being given to another storage.
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const std::shared_ptr<StorageOwner> owner_;
  std::shared_ptr<ManagedStorage> self_;  // while the DataPtr refers to this
  // For the message, which others than the word's thread may change.
  mutable OrderedMutex mutex_{LockRank::kManagedStorage};
  std::string barred_ ABSL_GUARDED_BY(mutex_);  // why; empty: it is not
  bool throws_for_ever_ ABSL_GUARDED_BY(mutex_) = false;  // whatever it has
  std::vector<StorageOwner::WeakTensor> tensors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
