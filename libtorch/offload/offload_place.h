// Where one offloaded model lives: its Runtime, its hook over that, and the
// share of the Runtime's memory of each optimizer that joins. Shared by what
// the program has of the model (its Offload, or Python's) and by its
// optimizers: whichever ends last gives the memory and the files back.
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
  // What an optimizer has of it, from Join to Leave.
  struct Share {
    int64_t bytes = 0;              // that the Runtime has because of it
    int64_t window_bytes = 0;       // of its queue
    int64_t most_window_bytes = 0;  // with more parameters
    int64_t largest_bytes = 0;      // of its gradients
  };

  static absl::StatusOr<std::shared_ptr<OffloadPlace>> Open(
      const std::vector<at::Tensor>& tensors,
      const std::vector<std::string>& names,
      const std::vector<std::vector<int64_t>>& modules,
      const PlaceOptions& asked, HookOptions hook = {});

  Runtime& runtime() const { return *home_.runtime; }
  Hook& hook() const { return *home_.hook; }
  const OffloadPlan& plan() const { return home_.plan; }
  const PlaceOptions& asked() const { return home_.asked; }
  // Those that are to end with the model; Python's are told by the package.
  JoinedOptimizers& joined() { return joined_; }
  // As they are now: of operations, and of the largest saved tensor that goes
  // below.
  int64_t window_bytes() const;
  int64_t activation_limit() const;
  // That optimizers which joined added to the budget, at most at a time so far:
  // the next one has them too.
  int64_t added_bytes() const;
  // As it was asked for, with all that was ever added.
  int64_t budget_bytes() const;
  // Where all is in memory by a budget in bytes, what is left of that; else
  // null.
  const std::shared_ptr<BesideBudget>& beside() const { return beside_; }

  // Room for an optimizer of these: more memory where the budget is a share, or
  // has more than the parameters take; else of what there is. Sets the name and
  // the window of `options`. Not where all is in memory.
  // ResourceExhausted: no such memory, or a budget below the minimum, which is
  // named.
  absl::StatusOr<Share> Join(absl::Span<const ParameterSpec> specs,
                             OptimizerOptions& options);
  // For more of them. After an error nothing has changed.
  absl::Status Extend(Share& share, absl::Span<const ParameterSpec> added);
  // They were not added: the share is as it was before Extend.
  void TakeBack(Share& share, const Share& before);
  // Its memory stays the Runtime's, for the next one.
  void Leave(const Share& share);

 private:
  OffloadPlace() = default;
  // To and from what all shares have.
  void Add(const Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The Runtime's memory with these shares; the window of operations.
  absl::Status Arrange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What Arrange needs at least.
  absl::Status CheckLeast(int64_t total_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t GrowthFor(absl::Span<const ParameterSpec> specs) const;
  // Of an optimizer's queue, at least and at most what `options` get.
  int64_t ChooseWindow(absl::Span<const ParameterSpec> specs,
                       int64_t added_bytes, int64_t least_bytes,
                       OptimizerOptions& options) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A parameter, its gradient, and room for one of them in any part; the least
  // activations.
  int64_t OperationBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return plan().minimum_bytes + LargestBytes();
  }
  int64_t LargestBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return largest_bytes_.empty() ? 0 : *largest_bytes_.rbegin();
  }

  OffloadHome home_;
  std::shared_ptr<BesideBudget> beside_;
  JoinedOptimizers joined_;
  mutable Mutex mutex_;
  int64_t joined_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all shares
  int64_t added_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // at most so far
  int64_t joined_windows_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<int64_t> largest_bytes_ ABSL_GUARDED_BY(mutex_);  // each's
  int64_t window_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t activation_limit_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;  // of those that joined
};

}  // namespace terrace
