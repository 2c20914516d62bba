// The late steps of one optimizer, one after another. A step begins when the
// step before has ended well. A step that failed is kept, with its gradients,
// until another attempt succeeds or the step is given up.
//
//   LateSteps late(*optimizer);
//   status = late.Flush(absl::InfiniteFuture());
//   if (status.ok()) status = late.Begin(std::move(step));  // updates go on
//   ...
//   status = late.Settle();  // before any other use of the optimizer
//
// A failed step that the optimizer has forgotten, as with a Reset or a load, is
// given up by the next Settle or Flush.
//
// Thread-compatible. The optimizer must outlive this object, except in a forked
// child, which has no updates and whose optimizer refuses calls by itself.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "libtorch/step/late/late_updates.h"
#include "terrace/optimizer.h"

namespace terrace {

class LateSteps {
 public:
  explicit LateSteps(OffloadedOptimizer& optimizer) : optimizer_(optimizer) {}
  // Waits for the updates. A step that failed is given up, with a LibTorch
  // warning where no caller was told of the failure.
  ~LateSteps();
  LateSteps(const LateSteps&) = delete;
  LateSteps& operator=(const LateSteps&) = delete;

  // Begins a step, after a Flush that returned OK. Blocks until the norm is
  // known, as LateUpdates::Begin does. The step updates the parameters in the
  // order in which operations took them after the step before.
  absl::Status Begin(LateArguments arguments);

  // Blocks until no update goes on, and returns how the updates ended. The next
  // Settle or Flush tells of a failure all the same.
  absl::Status Wait();
  // Blocks as Wait, and tells the caller of a failure. Further calls return the
  // same failure.
  absl::Status Settle();
  // Waits as Settle, but tries updates once more whose failure was told before.
  // Returns DeadlineExceeded when the deadline comes first: updates then go on,
  // or, where they had failed, stay failed until the next Flush.
  absl::Status Flush(absl::Time deadline);
  // Waits for the updates. Parameters of a step that failed stay as the failure
  // left them, and the step is not tried again.
  void GiveUp();

  // Returns whether a step is kept that may go on, or that has failed.
  bool HasStep();
  // Returns whether a caller was told that the step failed.
  bool is_told() const { return is_told_; }
  // How long operations, and threads that wait for the end, have waited for the
  // updates of steps that have ended.
  absl::Duration waited() const { return waited_; }

 private:
  absl::Status End(absl::Status status);

  OffloadedOptimizer& optimizer_;
  const Process process_;
  std::unique_ptr<LateUpdates> updates_;
  std::vector<int> order_;  // of the step before
  bool is_told_ = false;    // a caller knows that updates_ failed
  absl::Duration waited_;
};

}  // namespace terrace
