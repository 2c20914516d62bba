// Steps that an optimizer's backward passes make. In the last of so many passes
// each chunk is updated as soon as its gradients are there, and the gradients
// are freed. The updates are those of one step with the same gradients, bit for
// bit.
//
//   InBackwardSteps steps(/*passes=*/1, optimizer, known, calls);
//   steps.Follow();
//   ...                              // backward passes
//   began = steps.Finish(deadline);  // step() then takes the other gradients
//   steps.Restart();
//
// A step that backward began cannot be undone. Where it fails, every call that
// needs whole parameters is refused from then on, with the failure.
//
// Thread-compatible, apart from the methods that BackwardPasses calls. The
// objects that it is made with outlive it.
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
  // Calls into the optimizer.
  struct Calls {
    std::function<StepSource()> source;
    std::function<const std::vector<::torch::optim::OptimizerParamGroup>&()>
        groups;
    std::function<absl::StatusOr<std::vector<AdamOptions>>()> options;
    std::function<absl::Status()> adopt;  // takes parameters new in the groups
    std::function<void()> ended;          // a step has ended, well or not
  };
  InBackwardSteps(int passes, OffloadedOptimizer& optimizer,
                  const KnownParameters& known, Calls calls);
  ~InBackwardSteps() override;
  InBackwardSteps(const InBackwardSteps&) = delete;
  InBackwardSteps& operator=(const InBackwardSteps&) = delete;

  // Returns whether a step has begun and not ended.
  bool has_begun() const { return step_ != nullptr; }

  // Follows the gradients of the groups' parameters that require one now.
  void Follow();
  // Returns FailedPrecondition when a step has begun and not ended, so that
  // `what` would be done with half of it, or the failure of a step that failed.
  absl::Status Check(absl::string_view what) const;
  // Ends the step that backward has begun, and returns whether backward has
  // begun one since the last Restart. A pass that broke counts for nothing, or
  // has failed the step. Returns FailedPrecondition, and lets the step go on,
  // when the groups' options are no longer those that the step began with, or a
  // parameter that was stepped has another gradient.
  absl::StatusOr<bool> Finish(absl::Time deadline);
  // The next pass is the first of a step.
  void Restart();
  // A step that has begun, if there is one, fails for this reason.
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
  // Ends the step, which cannot go on, and returns the failure as it is told
  // from then on.
  absl::Status Fail(const absl::Status& why);
  void DropStepped();

  const int passes_;
  OffloadedOptimizer& optimizer_;
  const KnownParameters& known_;
  const Calls calls_;
  // Passes that are under way as this object ends have it too.
  const std::shared_ptr<BackwardPasses> followed_;
  GatheredStep gathered_;
  std::vector<AdamOptions> options_;   // of step_, by place
  std::unique_ptr<GradualStep> step_;  // null: none has begun
  std::vector<bool> supplied_;         // to step_, by place
  bool is_finished_ = false;           // a step, since the last Restart
  absl::Status failure_;
  std::vector<int> came_;   // places whose gradients came in this pass
  std::vector<int> order_;  // places as gradients came in the last pass
};

}  // namespace terrace
