// The place where one offloaded model lives: its Runtime, its hook over the
// Runtime, and the share of the Runtime's memory that each joined optimizer
// has. The program's Offload (or Python's) and the optimizers share the place,
// and the last of them that ends gives the memory and the files back.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "libtorch/offload/beside_budget.h"
#include "libtorch/offload/joined_optimizers.h"
#include "libtorch/offload/offload_home.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace terrace {

class OffloadPlace {
 public:
  // The share that an optimizer has of the place, from Join to Leave.
  struct Share {
    int64_t bytes = 0;              // that it adds to the Runtime's memory
    int64_t window_bytes = 0;       // of its queue
    int64_t most_window_bytes = 0;  // of its queue with more parameters
    int64_t largest_bytes = 0;      // of its largest gradient
  };

  static absl::StatusOr<std::shared_ptr<OffloadPlace>> Open(
      const std::vector<at::Tensor>& tensors,
      const std::vector<std::string>& names,
      const std::vector<std::vector<int64_t>>& modules,
      const PlaceOptions& asked, HookOptions hook = {});

  Runtime& runtime() const { return *home_.runtime; }
  Hook& hook() const { return *home_.hook; }
  const OffloadPlan& plan() const { return home_.plan; }
  // Does what Hook::Place describes, and fails with FailedPrecondition where
  // all of the model is in memory: nothing is below, whatever paths were named.
  absl::StatusOr<PlacementScope> BeginPlacement() const;
  const PlaceOptions& asked() const { return home_.asked; }
  // The optimizers that end with the model. The Python package tells those of
  // Python itself.
  JoinedOptimizers& joined() { return joined_; }
  // The present window of operations, and the present size of the largest saved
  // tensor that goes below.
  int64_t window_bytes() const;
  int64_t activation_limit() const;
  // The most bytes at a time that joined optimizers have added to the budget so
  // far. The next optimizer has them too.
  int64_t added_bytes() const;
  // The budget of the plan, with the bytes that were added.
  int64_t budget_bytes() const;
  // Returns what is left of a budget in bytes that holds all of the model, else
  // null.
  const std::shared_ptr<BesideBudget>& beside() const { return beside_; }

  // Makes room for an optimizer of these parameters: more memory where the
  // budget is a share, or has more than the parameters take, else a part of the
  // present memory. Sets the name and the window of `options`. A model that is
  // all in memory is not joined so. Returns ResourceExhausted when there is no
  // such memory, or for a budget below the minimum, which the message names.
  absl::StatusOr<Share> Join(absl::Span<const ParameterSpec> specs,
                             OptimizerOptions& options);
  // Makes room for more parameters. After an error nothing has changed.
  absl::Status Extend(Share& share, absl::Span<const ParameterSpec> added);
  // The parameters were not added: the share is again as it was before Extend.
  void TakeBack(Share& share, const Share& before);
  // The share's memory stays the Runtime's, for the next optimizer.
  void Leave(const Share& share);

 private:
  OffloadPlace() = default;
  // These count a share in, and out, of the sums of all shares.
  void Add(const Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the Runtime the memory that the present shares ask for, and the hook
  // its window and limit.
  absl::Status Arrange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ArrangeOnDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns ResourceExhausted when Arrange needs more than `total_bytes`.
  absl::Status CheckLeast(int64_t total_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What parameters add to a budget that is a share.
  int64_t GrowthFor(absl::Span<const ParameterSpec> specs) const;
  // What they get of a budget in bytes: of what the shares before left of it,
  // no more than is of use.
  int64_t LeftOf(int64_t useful_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the most that an optimizer's queue may take in `options`, no less than
  // `least_bytes`, and returns what of it the queue of these parameters takes.
  int64_t ChooseWindow(absl::Span<const ParameterSpec> specs,
                       int64_t added_bytes, int64_t least_bytes,
                       OptimizerOptions& options) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What operations need at least: the plan's minimum, which has room for
  // parameters, or for the least activations, and the largest gradient.
  int64_t OperationBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return plan().minimum_bytes + LargestBytes();
  }
  bool is_on_device() const { return !asked().device.empty(); }
  // The memory that optimizers' windows are of.
  int64_t WindowBudget() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is beside these windows at least: for operations, or, where these work
  // on a device, for tensors that come up to it and go down.
  int64_t BesideWindows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_on_device() ? plan().minimum_bytes : OperationBytes();
  }
  int64_t LargestBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return largest_bytes_.empty() ? 0 : *largest_bytes_.rbegin();
  }

  OffloadHome home_;
  std::shared_ptr<BesideBudget> beside_;
  JoinedOptimizers joined_;
  mutable Mutex mutex_;
  int64_t joined_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all shares
  int64_t added_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // the most so far
  int64_t joined_windows_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<int64_t> largest_bytes_ ABSL_GUARDED_BY(mutex_);  // by share
  int64_t window_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t activation_limit_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;  // of optimizers that joined
};

}  // namespace terrace
