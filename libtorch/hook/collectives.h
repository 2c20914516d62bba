// What LibTorch's process groups go on with after an operation of theirs has
// returned: a Work, which reads and writes its tensors until it is done. They
// stay pinned that long, whoever waits for it, or nobody does; also if it
// fails.
//
// Most Works tell their end by a future. Of the others (a send or a receive of
// gloo's) it is known when someone looks: once they were waited for, or are
// gone.
//
// A forked child has none of its parent's, and ends none.
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

// The storages of one operation, pinned where they are managed, until End or
// the last reference is gone. By one thread until it is inserted below.
class CollectiveUse {
 public:
  explicit CollectiveUse(std::string operation);
  ~CollectiveUse();
  CollectiveUse(const CollectiveUse&) = delete;
  CollectiveUse& operator=(const CollectiveUse&) = delete;

  // One in memory, once each. `managed`: what it is managed as, pinned, which
  // this ends; null: it is not.
  void Add(c10::StorageImpl& storage, ManagedStorage* managed);
  // Throws the message of one whose bytes are not here: a group's thread would
  // find it, and the Work be all that says so.
  void CheckBytes() const;
  void End();

  const std::string& operation() const { return operation_; }
  bool Has(const c10::StorageImpl& storage) const;
  // How many bytes of it; what is beyond the window is not counted. 0: none.
  int64_t BytesIn(const ByteWindow& window) const;
  bool HasOf(const ByteWindow& window) const;
  // Its Work does not tell its end.
  bool is_silent() const { return silent_work_ != nullptr; }

 private:
  friend class Collectives;
  struct SilentWork;
  bool IsSilentDone() const;

  const Process process_;
  const std::string operation_;
  std::vector<const c10::StorageImpl*> storages_;  // alive, by the Work
  std::vector<ManagedStorage*> pinned_;
  absl::flat_hash_map<const ByteWindow*, int64_t> bytes_in_;  // of those
  std::unique_ptr<SilentWork> silent_work_;
};

// All of a process. Thread-safe.
class Collectives {
 public:
  // Lives for ever.
  static Collectives& Get();

  // It has these until it is done.
  void Insert(const std::shared_ptr<CollectiveUse>& use,
              const c10::intrusive_ptr<c10d::Work>& work);

  // FailedPrecondition, with the tensor's name: a Work goes on with the
  // storage, managed or not.
  absl::Status CheckUnused(absl::string_view name,
                           const c10::StorageImpl& storage);
  // Lets go what Works have that are done and did not tell.
  void EndDone();
  // The bytes of this window's that Works have in it: at most so many, or those
  // that are left after a second, as peers may wait for what is to begin.
  int64_t AwaitRoom(const ByteWindow& window, int64_t most_bytes);
  // Until no Work that tells its end has a tensor of this window's, or the
  // deadline: the Work's own may be later.
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
  // Whose Works do not tell their end.
  std::vector<std::shared_ptr<CollectiveUse>> silent_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> silent_count_ = 0;
};

}  // namespace terrace
