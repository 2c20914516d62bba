// One offloaded model of the Python package: a Runtime of its own and a hook
// over it, behind a class that TORCH_LIBRARY can hand to Python.
//
// Nothing here throws: a method that can fail returns an Outcome, from which
// the package makes an exception of the right Python type. LibTorch calls the
// methods without Python's lock held.
//
// Thread-safe. A forked child's calls fail, and its copy is dropped without
// touching the files, the threads or the locks that are its parent's.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/offload/offload_place.h"
#include "libtorch/python/outcome.h"
#include "terrace/torch/hook.h"

namespace terrace {

// A tensor's bytes in memory, until End or until nothing has this any more:
// also where an interrupt comes before anything could be told of it. Has the
// offloaded model's memory.
class LeaseBinding final : public ::torch::CustomClassHolder {
 public:
  LeaseBinding() = default;  // of nothing
  LeaseBinding(std::shared_ptr<OffloadPlace> place, Lease lease);
  ~LeaseBinding() override;

  // Again: nothing. One thread at a time.
  void End();

 private:
  const Process process_;
  std::shared_ptr<OffloadPlace> place_;
  Lease lease_;
};

// A scope of placement, until End or until nothing has this any more.
class PlacementBinding final : public ::torch::CustomClassHolder {
 public:
  PlacementBinding() = default;  // of nothing
  explicit PlacementBinding(PlacementScope scope) : scope_(std::move(scope)) {}

  // Again: nothing. One thread at a time.
  void End() { scope_.End(); }

 private:
  PlacementScope scope_;
};

class OffloadBinding final : public ::torch::CustomClassHolder {
 public:
  OffloadBinding() = default;
  ~OffloadBinding() override;

  // Room for tensors as these, which may be on the meta device, once; `modules`
  // is as for PlanOffload, `options` a JSON object of the places among the
  // names of BindingOptions.
  Outcome Open(const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<std::vector<int64_t>>& modules,
               const std::string& options);
  // Takes these over; after an error none of them.
  Outcome Manage(const std::vector<at::Tensor>& tensors,
                 const std::vector<std::string>& names);

  // The gradient that the parameter has now, if that is one of these.
  Outcome ManageGradient(const at::Tensor& parameter);
  // The gradient of a parameter that stays in memory, as a shard does.
  Outcome ManageShardGradient(const std::string& name, const at::Tensor& shard);

  // Whether this one has the tensor's storage. No operation.
  bool Has(const at::Tensor& tensor);
  // What tells a tensor's storage from others if it is offloaded, by any of
  // these; else 0. No operation, which would bring its bytes.
  int64_t Storage(const at::Tensor& tensor);
  // How many tensors have its storage, and one more where Python has an object
  // of the storage itself; how many have the tensor, this call too.
  std::tuple<int64_t, int64_t> Uses(const at::Tensor& tensor);
  // Each storage has the other one's memory from then on, which is of the same
  // size. Blocks until no update reads or writes either.
  // The name is the tensor's, for errors.
  Outcome ExchangeMemory(const std::string& name, const at::Tensor& tensor,
                         const at::Tensor& memory);

  // Brings a tensor's storage and keeps it, for as long as what it answers.
  std::tuple<Outcome, c10::intrusive_ptr<LeaseBinding>> MakeLease(
      const at::Tensor& tensor, bool write);

  // Begins a scope of the calling thread. See Hook::Place.
  std::tuple<Outcome, c10::intrusive_ptr<PlacementBinding>> BeginPlacement();

  // The address of a tensor that is not offloaded is given to somebody: none of
  // these takes it over for an operation's writing it.
  void GiveAddress(const at::Tensor& tensor);

  // A tensor that autograd saves; whether it goes below. Not after Close: it
  // stays as it is. See Hook::ManageSaved, UseSaved.
  std::tuple<Outcome, bool> SaveActivation(const at::Tensor& tensor);
  void UseActivation(const at::Tensor& tensor);

  // See Hook.
  Outcome Prefetch(const std::vector<at::Tensor>& tensors);
  Outcome BeginStep();
  Outcome Retry();
  // The first failure of a fetch; after Close as well.
  Outcome Error();

  // Of these stats, what an operation took beyond the budget, and which one
  // ("": none did), as each step asks. After Close: none.
  std::tuple<Outcome, std::string, int64_t> OverBudget();
  // A JSON object; see OffloadStatsAsJson. After Close what was true then.
  std::tuple<Outcome, std::string> Stats();

  // `restore`: brings the tensors into ordinary memory; else every use of them
  // fails from here on. Where the first word of the answer is false nothing has
  // changed: a tensor is leased or in use. Otherwise it is closed, also where
  // not all could be restored, and the files are gone. Again: the same answer.
  // Optimizers that joined still work, on what there is in ordinary memory.
  std::tuple<bool, Outcome> Close(bool restore);
  // By Close; in a forked child it is.
  bool IsClosed();
  // Gives memory and files back, once they are closed too. Again: nothing.
  Outcome End();

  // For an optimizer that joins. FailedPrecondition: it is closed.
  absl::StatusOr<std::shared_ptr<OffloadPlace>> Place();

 private:
  // What is left to be told of one that is closed.
  struct Ended {
    std::string stats;
    absl::Status error;
    absl::Status close;  // what it answered
  };

  absl::Status CheckProcess() const;

  const Process process_;
  Mutex mutex_;
  std::shared_ptr<OffloadPlace> place_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Ended> ended_ ABSL_GUARDED_BY(mutex_);
  // Without a hook: until End.
  std::shared_ptr<OffloadPlace> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
