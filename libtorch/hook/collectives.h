// A Work of a LibTorch process group goes on after its operation has returned:
// it reads and writes its tensors until it is done. The tensors stay pinned
// that long, whether or not anybody waits for the Work, and also if the Work
// fails.
//
// Most Works tell their end by a future. The end of the others (a send or a
// receive of gloo's) is known only when someone looks: such a Work is done once
// somebody has waited for it, or once it is gone.
//
// A forked child has none of its parent's Works, and ends none of them.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/process.h"

namespace c10d {
class Work;
}

namespace terrace {

class ByteWindow;
class ManagedStorage;

// A CollectiveUse has the storages of one operation. Those that are managed
// stay pinned until End, or until the last reference to the CollectiveUse is
// gone. One thread uses the object until Insert below takes it.
class CollectiveUse {
 public:
  explicit CollectiveUse(std::string operation);
  ~CollectiveUse();
  CollectiveUse(const CollectiveUse&) = delete;
  CollectiveUse& operator=(const CollectiveUse&) = delete;

  // Adds a storage in CPU memory, which was not added before. `managed` is the
  // storage as a hook manages it, with a pin of the caller's, which this object
  // ends; it is null for a storage that no hook manages.
  void Add(c10::StorageImpl& storage, ManagedStorage* managed);
  // Throws the message of a storage whose bytes are not here. Otherwise a
  // thread of the process group would find that out, and the Work alone would
  // say so.
  void CheckBytes() const;
  void End();

  const std::string& operation() const { return operation_; }
  bool Has(const c10::StorageImpl& storage) const;
  // Returns how many bytes these storages have in the window, and 0 for none.
  int64_t BytesIn(const ByteWindow& window) const;
  bool HasOf(const ByteWindow& window) const;
  // Returns true when the Work does not tell its end.
  bool is_silent() const { return silent_work_ != nullptr; }

 private:
  friend class Collectives;
  struct SilentWork;
  bool IsSilentDone() const;

  const Process process_;
  const std::string operation_;
  std::vector<const c10::StorageImpl*> storages_;  // the Work keeps them alive
  std::vector<ManagedStorage*> pinned_;
  absl::flat_hash_map<const ByteWindow*, int64_t> bytes_in_;  // of pinned_
  std::unique_ptr<SilentWork> silent_work_;
};

// The class has the uses of all Works of a process. It is thread-safe.
class Collectives {
 public:
  // Returns the one object of the process, which lives for ever.
  static Collectives& Get();

  // The Work keeps the storages of `use` pinned until it is done.
  void Insert(const std::shared_ptr<CollectiveUse>& use,
              const c10::intrusive_ptr<c10d::Work>& work);

  // Fails with FailedPrecondition, which names the tensor, while a Work goes on
  // with the storage, whether or not a hook manages it.
  absl::Status CheckUnused(absl::string_view name,
                           const c10::StorageImpl& storage);
  // Lets go of the storages of Works that are done and did not tell.
  void EndDone();
  // Waits until Works have at most `most_bytes` in the window. The wait ends
  // after a second, since peers may wait for the operation that is to begin,
  // and at once when only Works that do not tell their end have bytes there.
  void AwaitRoom(const ByteWindow& window, int64_t most_bytes);
  // Waits until no Work that tells its end has a tensor of the window, or until
  // the deadline; the Work's own deadline may be later.
  void AwaitEnd(const ByteWindow& window, absl::Time deadline);

 private:
  friend class CollectiveUse;
  Collectives();
  void Erase(CollectiveUse& use);
  int64_t BytesIn(const ByteWindow& window, bool are_silent) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFork();
  void AfterFork();
  void AfterForkInChild();

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<CollectiveUse*> uses_ ABSL_GUARDED_BY(mutex_);
  // The uses whose Works do not tell their end.
  std::vector<std::shared_ptr<CollectiveUse>> silent_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> silent_count_ = 0;
};

}  // namespace terrace
