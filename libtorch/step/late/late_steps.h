// The late steps of one optimizer, one after another: a step begins when the
// one before has ended well, and one that failed is kept, with its gradients,
// until another attempt succeeds or it is given up.
//
//   LateSteps late(*optimizer);
//   status = late.Finish(absl::InfiniteFuture());
//   if (status.ok()) status = late.Begin(std::move(step));  // updates go on
//   ...
//   status = late.Settle();  // before any other use of the optimizer
//
// A failed step that the optimizer has forgotten, as with a Reset or a load, is
// given up by whatever looks at it next.
//
// Thread-compatible. The optimizer must outlive it, but in a forked child,
// where there are no updates and the optimizer refuses by itself.
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
  // Waits. What failed is given up, with a warning of LibTorch's where it was
  // not told.
  ~LateSteps();
  LateSteps(const LateSteps&) = delete;
  LateSteps& operator=(const LateSteps&) = delete;

  // After a Finish that was OK. Blocks until the norm is known, as
  // LateUpdates::Begin; the order is that in which operations took the
  // parameters after the step before.
  absl::Status Begin(LateArguments arguments);

  // Blocks until no update goes on: how they ended. What failed is told by the
  // next Settle or Finish all the same.
  absl::Status Wait();
  // The same, and tells what failed. Again: the same.
  absl::Status Settle();
  // As Settle, but tries once more what was told before. DeadlineExceeded: the
  // deadline came first; updates go on, or wait for the next Finish where they
  // had failed.
  absl::Status Finish(absl::Time deadline);
  // Waits. What failed is as its failure left it, and not tried again.
  void GiveUp();

  // Whether there is a step that may have to be waited for, or failed.
  bool HasStep();
  // That it failed.
  bool is_told() const { return is_told_; }
  // How long operations, and what waits for all, have waited for the updates of
  // steps that have ended.
  absl::Duration waited() const { return waited_; }

 private:
  absl::Status End(absl::Status status);

  OffloadedOptimizer& optimizer_;
  const Process process_;
  std::unique_ptr<LateUpdates> updates_;
  std::vector<int> order_;  // of the step before
  bool is_told_ = false;    // that updates_ failed
  absl::Duration waited_;
};

}  // namespace terrace
