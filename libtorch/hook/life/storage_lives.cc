#include "libtorch/hook/life/storage_lives.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/life/without_python.h"
#include "libtorch/hook/window/room_news.h"

namespace terrace {

absl::Status StorageLives::Add(const Storages& storages, bool are_pinned) {
  TERRACE_RETURN_IF_ERROR(Enter(storages));
  std::vector<WindowTensor*> added;
  for (const Storage& storage : storages) added.push_back(storage.get());
  absl::Status added_all = window_.Add(added);
  bool may_be_free = true;
  while (absl::IsAlreadyExists(added_all) && may_be_free) {
    const Storages others = NamedAs(storages);
    // One that had the name may have gone meanwhile, or a device still does
    // what it was given with it: it is tried once more.
    may_be_free = !others.empty();
    if (may_be_free && !AwaitEnds(others)) break;
    if (!may_be_free) window_.AwaitLeft();
    added_all = window_.Add(added);
  }
  if (!added_all.ok()) {
    for (const Storage& storage : storages) End(storage);
    return added_all;
  }
  const absl::Status filled = Fill(storages, are_pinned);
  if (filled.ok()) return filled;
  const std::string lost = TakeBack(storages);
  if (lost.empty()) return filled;
  return Reworded(
      filled, absl::StrCat(filled.message(), "; lost on the way back: ", lost));
}

absl::Status StorageLives::Enter(const Storages& storages) {
  StorageIndex::Ended ended;  // ends without the lock
  OrderedLock lock(mutex_);
  if (is_closed_) return absl::FailedPreconditionError("the hook is closed");
  for (const Storage& storage : storages) {
    if (!members_.contains(storage->address())) continue;
    return absl::AbortedError(
        storage->Told("another thread has just added it, or it ends"));
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    if (index_.Insert(*storages[i])) continue;
    for (size_t before = 0; before < i; ++before) {
      Drop(storages[before], ended);
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", storages[i]->name(), "' is managed by another hook"));
  }
  for (const Storage& storage : storages) {
    members_.emplace(storage->address(), storage);
    size_bytes_ += storage->size_bytes();
  }
  return absl::OkStatus();
}

StorageLives::Storages StorageLives::NamedAs(const Storages& storages) const {
  absl::flat_hash_set<absl::string_view> names;
  for (const Storage& storage : storages) names.insert(storage->name());
  Storages others;
  OrderedLock lock(mutex_);
  for (const auto& [address, each] : members_) {
    const bool is_other =
        names.contains(each->name()) && !absl::c_linear_search(storages, each);
    if (is_other) others.push_back(each);
  }
  return others;
}

bool StorageLives::AwaitEnds(const Storages& storages) {
  // The last reference to a storage may be that of the thread that evicts it,
  // and one that is removed is owned as if it was evicted.
  for (const Storage& each : storages) {
    const WithoutPython without;
    each->word().AwaitEviction();
  }
  Sweep();
  return absl::c_all_of(storages, [](const Storage& each) {
    const Life life = each->word().life();
    return each->gone() && (life == Life::kLeaving || life == Life::kGone);
  });
}

absl::Status StorageLives::Fill(const Storages& storages, bool are_pinned) {
  for (const Storage& storage : storages) {
    TERRACE_RETURN_IF_ERROR(OperationPins::Fill(*storage));
    SetLife(*storage, Life::kManaged, /*is_pinned=*/true);
    // Its room may be wanted already.
    if (!are_pinned) OperationPins::Unpin(*storage);
  }
  return absl::OkStatus();
}

std::string StorageLives::TakeBack(const Storages& storages) {
  std::string lost;
  for (const Storage& storage : storages) {
    if (storage->word().life() == Life::kEntering) {
      window_.Remove(*storage);  // it has the bytes that it had
      End(storage);
    } else if (BeginLeave(*storage) &&
               !LetGo(storage, /*restore=*/true, /*waits=*/false).ok()) {
      absl::StrAppend(&lost, lost.empty() ? "" : ", ", "'", storage->name(),
                      "'");
    }
  }
  return lost;
}

StorageLives::Storage StorageLives::Find(const void* address) const {
  OrderedLock lock(mutex_);
  const auto found = members_.find(address);
  if (found == members_.end()) return nullptr;
  const Life life = found->second->word().life();
  const bool is_managed = life == Life::kManaged || life == Life::kStopping;
  return is_managed ? found->second : nullptr;
}

StorageLives::Storages StorageLives::All() const {
  Storages all;
  OrderedLock lock(mutex_);
  for (const auto& [address, storage] : members_) all.push_back(storage);
  return all;
}

bool StorageLives::closed() const { return is_closed_; }

int64_t StorageLives::count() const {
  OrderedLock lock(mutex_);
  return static_cast<int64_t>(members_.size());
}

int64_t StorageLives::size_bytes() const {
  OrderedLock lock(mutex_);
  return size_bytes_;
}

void StorageLives::NoteDied(Storage storage) {
  OrderedLock lock(mutex_);
  if (is_closed_) return;  // only a Close may have it still
  died_.push_back(std::move(storage));
}

void StorageLives::Sweep() {
  Storages died;
  {
    OrderedLock lock(mutex_);
    if (is_closed_ || died_.empty()) return;
    died.swap(died_);
    for (Storage& storage : died) {
      if (storage->word().BeginRemove()) continue;
      // An operation has the storage still, or a thread evicts it now, perhaps
      // this one: the storage's last reference may be that of the eviction. Or
      // the storage has gone in another way.
      const bool is_member = storage->word().life() != Life::kGone;
      if (is_member) died_.push_back(std::move(storage));
      storage.reset();
    }
  }
  std::erase(died, nullptr);
  for (const Storage& storage : died) {
    window_.RemoveOwned(*storage);
    End(storage);
  }
}

void StorageLives::SetLife(StorageLife& storage, Life life, bool is_pinned) {
  OrderedLock lock(mutex_);
  storage.word().SetLife(life, is_pinned);
}

bool StorageLives::BeginLeave(StorageLife& storage) {
  OrderedLock lock(mutex_);
  return storage.word().Leave();
}

void StorageLives::End(const Storage& storage) {
  StorageIndex::Ended ended;  // ends without the lock
  OrderedLock lock(mutex_);
  members_.erase(storage->address());
  size_bytes_ -= storage->size_bytes();
  Drop(storage, ended);
}

void StorageLives::Drop(const Storage& storage, StorageIndex::Ended& ended) {
  for (Storage& each : index_.Erase(storage)) ended.push_back(std::move(each));
  // Threads that waited for the storage find it no more.
  storage->word().SetLife(Life::kGone);
}

absl::Status StorageLives::Close(const CloseOptions& options) {
  const WithoutPython without;
  Sweep();
  TERRACE_ASSIGN_OR_RETURN(
      const bool is_first,
      BeginClose(leases_ > 0 ? absl::ZeroDuration() : options.patience));
  if (!is_first) return absl::OkStatus();
  absl::Status status = LetGoAll(options.restore);
  status.Update(window_.Shut());
  Storages died;  // ends without the lock
  OrderedLock lock(mutex_);
  died.swap(died_);
  closing_ = std::thread::id();
  changed_.SignalAll();
  return status;
}

absl::StatusOr<bool> StorageLives::BeginClose(absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  const std::thread::id self = std::this_thread::get_id();
  OrderedLock lock(mutex_);
  // Another thread may have closed the hook, and not be done with it.
  while (closing_ != std::thread::id() && closing_ != self) {
    changed_.Wait(mutex_);
  }
  if (is_closed_ || closing_ == self) return false;
  closing_ = self;
  RoomNews::Listener news;  // of pins that end, and of storages that enter
  while (!LeaveAll()) {
    if (absl::Now() >= end) {
      const std::string in_use = InUse();
      ManageAll();
      closing_ = std::thread::id();
      changed_.SignalAll();
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", in_use, "' is leased or in use"));
    }
    mutex_.Unlock();
    news.Wait(end);
    mutex_.Lock();
  }
  is_closed_ = true;
  return true;
}

bool StorageLives::LeaveAll() {
  for (const auto& [address, storage] : members_) storage->word().Stop();
  Storages left;
  for (const auto& [address, storage] : members_) {
    if (!storage->word().Leave()) break;
    left.push_back(storage);
  }
  if (left.size() == members_.size()) return true;
  for (const Storage& storage : left) {
    storage->word().SetLife(Life::kStopping);
  }
  return false;
}

void StorageLives::ManageAll() {
  for (const auto& [address, storage] : members_) {
    if (storage->word().life() != Life::kStopping) continue;
    storage->word().SetLife(Life::kManaged);
  }
}

std::string StorageLives::InUse() const {
  for (const auto& [address, storage] : members_) {
    if (storage->word().pinned()) return storage->name();
  }
  for (const auto& [address, storage] : members_) {
    if (storage->word().life() != Life::kStopping) return storage->name();
  }
  return members_.begin()->second->name();
}

absl::Status StorageLives::LetGoAll(bool restore) {
  absl::Status status;
  Storages left = All();
  for (bool waits = restore; !left.empty();) {
    Storages waiting;
    for (Storage& storage : left) {
      const absl::Status one = LetGo(storage, restore, waits);
      if (waits && absl::IsResourceExhausted(one)) {
        waiting.push_back(std::move(storage));
      } else {
        status.Update(one);
      }
    }
    // Storages that lack room try again for as long as others leave: where
    // nothing can be written, only those make room.
    waits = waits && waiting.size() < left.size();
    left = std::move(waiting);
  }
  return status;
}

absl::Status StorageLives::LetGo(const Storage& storage, bool restore,
                                 bool waits) {
  absl::Status status = absl::CancelledError("the hook is closed");
  if (restore && !storage->gone()) {
    // Bytes that could not be fetched before may be there by now.
    if (storage->word().BeginRetry()) storage->word().End(Residency::kCold);
    status = window_.MoveOut(*storage);
  }
  if (waits && absl::IsResourceExhausted(status)) return status;
  if (!status.ok()) {
    window_.Refuse(*storage, absl::IsCancelled(status)
                                 ? "the hook is closed"
                                 : "the hook is closed, and its bytes could "
                                   "not be brought");
    // Nothing wants the bytes of a storage that has died.
    if (!restore || storage->gone()) status = absl::OkStatus();
  }
  End(storage);
  return status;
}

}  // namespace terrace
