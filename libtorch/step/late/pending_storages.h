// The storages of one late step that operations have to wait for: those of
// parameters that are not updated yet, and of gradients that the updates still
// read. A key stands for a storage, which several tensors may share.
//
//   pending.Add(parameter, name, its storage, its gradient's, gradient);
//   pending.Await(operands, refuse);      // each operation, before it runs
//   pending.SetStepped(parameters);       // the thread that updates
//   pending.TakeWanted(&parameters);      // the same: what is waited for
//   pending.End(status);                  // the same, at last
//
// Gradients are let go by the threads that call Await or TakeGarbage, never by
// the thread that updates: a tensor that Python has seen can end only with
// Python's lock, which a thread that waits here may hold.
//
// A thread waits until the update or the step ends. End or GiveUp is called in
// any case; after GiveUp no operation waits and none is refused.
//
// Thread-safe, except Add, which comes before all other calls. `refuse` is
// called with the lock held, so that no retry comes between (lock_order.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/threads/lock_order.h"

namespace terrace {

class RefusedStorage;

class PendingStorages {
 public:
  struct Operand {
    const void* storage;
    bool is_written;
  };
  using Garbage = std::vector<std::shared_ptr<const void>>;

  // `retry` names the call by which a program tries a failed step again, for
  // messages.
  explicit PendingStorages(std::string retry = "Flush()")
      : retry_(std::move(retry)) {}
  PendingStorages(const PendingStorages&) = delete;
  PendingStorages& operator=(const PendingStorages&) = delete;

  // Adds a parameter that is to be updated. `gradient_storage` is null where
  // there is no gradient to wait for. `gradient` is kept until the update has
  // read it for the last time.
  void Add(int parameter, std::string name, const void* storage,
           const void* gradient_storage, std::shared_ptr<const void> gradient)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds a parameter whose value is there and is sent to other ranks: only an
  // operation that writes the storage waits for it.
  void AddSent(int parameter, std::string name, const void* storage)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until every operand is as the step leaves it: parameters are
  // updated, and no update reads a gradient any more that is written. Calls
  // `refuse` with the index of each operand whose update has failed, and why,
  // but never once the step is tried again, or is closed. What `refuse` returns
  // is kept for TakeRefused; it is null where nothing is to be taken back.
  using Refused = std::shared_ptr<const RefusedStorage>;
  using Refuse =
      absl::FunctionRef<Refused(size_t operand, const absl::Status& why)>;
  // The time that a thread of the library waits does not count as waited().
  enum class Waiter : bool { kOfProgram, kOfLibrary };
  void Await(absl::Span<const Operand> operands, Refuse refuse,
             Waiter waiter = Waiter::kOfProgram) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether Await would neither wait for the operand nor refuse it. The
  // call does not count as a use of the operand in order().
  bool IsFree(Operand operand) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Both block until the step has ended; AwaitEndUntil returns false when the
  // deadline comes first.
  void AwaitEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  bool AwaitEndUntil(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  Garbage TakeGarbage() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the step has ended well or is closed, so that no operation
  // waits for it any more.
  bool is_done() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether a thread waits for a parameter, or for the end.
  bool has_waiters() const ABSL_LOCKS_EXCLUDED(mutex_);
  // How long threads have waited, in all.
  absl::Duration waited() const ABSL_LOCKS_EXCLUDED(mutex_);

  // From here on `wake` is called, with the lock held, whenever a parameter is
  // wanted that was not: the thread that updates takes it with TakeWanted. With
  // null nothing is called any more once this has returned.
  void SetWake(std::function<void()> wake) ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends the parameters that threads wait for, each once.
  void TakeWanted(std::vector<int>* parameters) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetStepped(absl::Span<const int> parameters) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the step; with OK every parameter is updated.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // A step that failed is tried again, and goes on to another End.
  void BeginAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  // A step that failed is not tried again.
  void GiveUp() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns parameters in the order in which operations took them first.
  std::vector<int> order() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the storages that were refused since the last call, each once.
  std::vector<Refused> TakeRefused() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Parameter {
    int place;
    std::string name;
    std::shared_ptr<const void> gradient;
    bool is_wanted = false;
    bool is_pending = true;
  };
  // Indices into parameters_.
  struct Storage {
    std::vector<size_t> parameters;
    std::vector<size_t> gradients;
    std::vector<size_t> sent;
    bool is_used = false;
    Refused refused;
  };

  // Returns a pending parameter that the operand waits for, or null.
  const Parameter* Missing(const Storage& storage, bool is_written) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns one of these parameters that is pending, or null.
  const Parameter* PendingOf(const std::vector<size_t>& parameters) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(Storage& storage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Want(const std::vector<size_t>& parameters)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Step(Parameter& parameter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitForChange(absl::Duration most = absl::InfiniteDuration(),
                     Waiter waiter = Waiter::kOfProgram)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string retry_;
  mutable OrderedMutex mutex_{LockRank::kPendingStorages};
  CondVar changed_;
  std::vector<Parameter> parameters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int, size_t> by_place_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, Storage> storages_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> wanted_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> order_ ABSL_GUARDED_BY(mutex_);
  Garbage garbage_ ABSL_GUARDED_BY(mutex_);
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration waited_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
