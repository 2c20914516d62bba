// Steps that an optimizer's backward passes make: in the last of so many, each
// chunk is updated as soon as its gradients are there, and they are freed. What
// is done is what one step with the same gradients does, bit for bit.
//
//   InBackwardSteps steps(/*passes=*/1, optimizer, known, calls);
//   steps.Follow();
//   ...                           // backward passes
//   began = steps.Finish(deadline);  // of step(), then what else has gradients
//   steps.Restart();
//
// A step that backward began cannot be undone: where it fails everything that
// needs whole parameters is refused from then on, with the failure.
//
// Thread-compatible, but for what BackwardPasses calls. What it is made with
// outlives it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libtorch/step/gathered/gathered_step.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/step/in_backward/backward_passes.h"
#include "terrace/optimizer.h"

namespace terrace {

class InBackwardSteps final : public BackwardPasses::Listener {
 public:
  // Of the optimizer.
  struct Calls {
    std::function<StepSource()> source;
    std::function<absl::Status()> adopt;  // parameters that groups have got
    std::function<void()> ended;          // a step, well or not
  };
  InBackwardSteps(int passes, OffloadedOptimizer& optimizer,
                  const KnownParameters& known, Calls calls);
  ~InBackwardSteps() override;
  InBackwardSteps(const InBackwardSteps&) = delete;
  InBackwardSteps& operator=(const InBackwardSteps&) = delete;

  // A step, which has not ended.
  bool has_begun() const { return step_ != nullptr; }

  // The gradients of what groups have and requires one now.
  void Follow();
  // FailedPrecondition: a step has begun and not ended; `what` would be done
  // with half of it. Or what failed it.
  absl::Status Check(absl::string_view what) const;
  // Ends what backward has begun, with these options still: whether it had
  // begun it since the last Restart. A pass that broke counts for nothing, or
  // has failed the step. FailedPrecondition, and the step goes on: options are
  // others meanwhile, or what was stepped has another gradient.
  absl::StatusOr<bool> Finish(absl::Time deadline);
  // The next pass is the first of a step.
  void Restart();
  // A step that has begun, if there is one, fails for this.
  void GiveUp(const absl::Status& why);

  absl::Status GradientCame(const at::Tensor& leaf,
                            BackwardPasses::Gradient gradient) override;
  absl::Status PassEnded(bool is_last) override;
  void PassBroke() override;

 private:
  absl::Status Begin();
  absl::Status BeginGathered();
  std::vector<int> ExpectedOrder() const;
  bool Wants(size_t place) const;
  absl::Status Supply(size_t place);
  absl::Status SupplyRest();
  absl::Status CheckUnchanged() const;
  // The step cannot go on; `why`, as it is told from then on.
  absl::Status Fail(const absl::Status& why);
  void DropStepped();

  const int passes_;
  OffloadedOptimizer& optimizer_;
  const KnownParameters& known_;
  const Calls calls_;
  // Shared with passes that are under way as this ends.
  const std::shared_ptr<BackwardPasses> followed_;
  GatheredStep gathered_;
  std::unique_ptr<GradualStep> step_;  // null: none has begun
  std::vector<bool> supplied_;         // in it, by place
  bool is_finished_ = false;           // one, since the last Restart
  absl::Status failure_;
  std::vector<int> came_;   // places, in this pass
  std::vector<int> order_;  // as gradients came in the last one
};

}  // namespace terrace
