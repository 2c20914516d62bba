// Steps that backward makes, of OffloadedAdamBase.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/optimizer/joined_offload.h"
#include "libtorch/step/gathered/gathered_step.h"
#include "libtorch/step/gathered/groups.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/step/in_backward/in_backward_steps.h"
#include "libtorch/tensor_check.h"
#include "terrace/torch/optimizer.h"

namespace terrace {
namespace {

bool HaveGradients(
    const std::vector<::torch::optim::OptimizerParamGroup>& groups) {
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) return true;
    }
  }
  return false;
}

}  // namespace

absl::Status OffloadedAdamBase::SetStepInBackward(int passes) {
  if (passes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step in backward of ", passes, " backward passes; 0: none"));
  }
  if (passes > 0 && clips_) {
    return absl::InvalidArgumentError(
        "max_gradient_norm, skip_nonfinite or a step in backward: the norm is "
        "known when the last gradient is, and the first are stepped before");
  }
  TERRACE_RETURN_IF_ERROR(CheckBetweenSteps("passes for a step are set"));
  TERRACE_RETURN_IF_ERROR(Flush());
  if (offloaded_->incomplete()) {
    return absl::FailedPreconditionError(
        "a step is incomplete; call step() again first");
  }
  return Guarded([&] { return FollowBackward(passes); });
}

absl::Status OffloadedAdamBase::FollowBackward(int passes) {
  for (const at::Tensor& parameter : known_->tensors()) {
    if (passes > 0 && IsOffloaded(parameter.grad())) {
      return absl::FailedPreconditionError(
          "gradients are below, where backward does not step with them; "
          "zero_grad() first");
    }
  }
  in_backward_.reset();
  if (joined_ != nullptr) {
    TERRACE_RETURN_IF_ERROR(
        joined_->SetGradientsBelow(passes == 0, known_->tensors()));
  }
  if (passes == 0) return absl::OkStatus();
  InBackwardSteps::Calls calls;
  calls.source = [this] { return Source(); };
  calls.groups = [this]() -> const auto& { return param_groups(); };
  calls.options = [this] {
    return OptionsByPlace(mode_, bias_correction_, param_groups(), *known_);
  };
  calls.adopt = [this] { return AdoptParameters(); };
  calls.ended = [this] { TidyUp(); };
  in_backward_ = std::make_unique<InBackwardSteps>(passes, *offloaded_, *known_,
                                                   std::move(calls));
  in_backward_->Follow();
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::CheckBetweenSteps(
    absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  return in_backward_ == nullptr ? absl::OkStatus() : in_backward_->Check(what);
}

absl::Status OffloadedAdamBase::StepInBackward(const StepArguments& arguments) {
  if (arguments.loss_scale != 1 || arguments.norm_gradients ||
      arguments.max_gradient_norm.value_or(0) > 0 ||
      arguments.skip_nonfinite.value_or(false)) {
    const absl::Status status = absl::UnimplementedError(
        "a step in backward has the gradients as they come: it takes no loss "
        "scale, and neither clips nor skips");
    in_backward_->GiveUp(status);
    return status;
  }
  TERRACE_ASSIGN_OR_RETURN(const bool had_begun,
                           in_backward_->Finish(Deadline()));
  TERRACE_RETURN_IF_ERROR(AdoptParameters());
  // Parameters that have their first gradient, and all where no pass was the
  // last.
  if (!had_begun || HaveGradients(param_groups())) {
    TERRACE_RETURN_IF_ERROR(gathered_->Gather(
        Source(), known_->AreIn(param_groups()), offloaded_->incomplete()));
    TERRACE_RETURN_IF_ERROR(StepNow(arguments));
  }
  in_backward_->Restart();
  return absl::OkStatus();
}

}  // namespace terrace
