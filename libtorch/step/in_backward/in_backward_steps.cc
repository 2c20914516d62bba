#include "libtorch/step/in_backward/in_backward_steps.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

template <typename Work>
absl::Status GuardedWithoutGraph(const Work& work) {
  const at::NoGradGuard without_graph;
  return Guarded(work);
}

}  // namespace

InBackwardSteps::InBackwardSteps(int passes, OffloadedOptimizer& optimizer,
                                 const KnownParameters& known, Calls calls)
    : passes_(passes),
      optimizer_(optimizer),
      known_(known),
      calls_(std::move(calls)),
      followed_(std::make_shared<BackwardPasses>(*this, passes)) {}

InBackwardSteps::~InBackwardSteps() {
  followed_->End();
  followed_->Follow({});
}

void InBackwardSteps::Follow() {
  std::vector<at::Tensor> leaves;
  for (const auto& group : calls_.groups()) {
    leaves.insert(leaves.end(), group.params().begin(), group.params().end());
  }
  followed_->Follow(leaves);
}

absl::Status InBackwardSteps::Check(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(failure_);
  if (step_ == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " in the middle of a step that backward began; call "
                   "step() first"));
}

absl::StatusOr<bool> InBackwardSteps::Finish(absl::Time deadline) {
  followed_->Break();
  TERRACE_RETURN_IF_ERROR(failure_);
  if (step_ == nullptr) return is_finished_;
  TERRACE_RETURN_IF_ERROR(CheckUnchanged());
  absl::Status status = step_->Finish(deadline);
  if (status.ok()) {
    status = GuardedWithoutGraph([&] {
      gathered_.Return(/*is_written=*/true, /*is_incomplete=*/false);
      return absl::OkStatus();
    });
  }
  if (!status.ok()) return Fail(status);
  step_.reset();
  is_finished_ = true;
  followed_->Restart();
  calls_.ended();
  return true;
}

absl::Status InBackwardSteps::CheckUnchanged() const {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<AdamOptions> options,
                           calls_.options());
  for (size_t i = 0; i < supplied_.size(); ++i) {
    if (!gathered_.IsGathered(i)) continue;
    if (!(options[i] == options_[i])) {
      return absl::FailedPreconditionError(absl::StrCat(
          "options of parameter ", i,
          " were changed after backward began the "
          "step with them; set them back, step(), and change them then"));
    }
    if (supplied_[i] && known_.tensors()[i].grad().defined()) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter ", i,
                       " has another gradient after backward stepped it "
                       "with its own; reset it, and step() again"));
    }
  }
  return absl::OkStatus();
}

void InBackwardSteps::Restart() {
  is_finished_ = false;
  came_.clear();
  followed_->Restart();
  Follow();
}

void InBackwardSteps::GiveUp(const absl::Status& why) {
  if (step_ != nullptr) Fail(why).IgnoreError();
}

absl::Status InBackwardSteps::GradientCame(const at::Tensor& leaf,
                                           BackwardPasses::Gradient gradient) {
  TERRACE_RETURN_IF_ERROR(failure_);
  if (gradient == BackwardPasses::Gradient::kOfOneTooMany) {
    return absl::FailedPreconditionError(absl::StrCat(
        "backward pass ", passes_ + 1, " since the last step of an optimizer ",
        "that steps in backward with ", passes_, " for each"));
  }
  const int place = known_.IndexOf(leaf);
  if (place < 0 || !leaf.grad().defined()) return absl::OkStatus();
  came_.push_back(place);
  const auto index = static_cast<size_t>(place);
  if (step_ != nullptr && index < supplied_.size() && supplied_[index]) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "parameter ", place,
        " was given another gradient by the same backward "
        "pass after it was stepped with one: a function that it has not met "
        "before runs backward within itself")));
  }
  if (gradient != BackwardPasses::Gradient::kComplete) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(Begin());
  return Wants(index) ? Supply(index) : absl::OkStatus();
}

absl::Status InBackwardSteps::PassEnded(bool is_last) {
  if (!came_.empty()) order_ = std::exchange(came_, {});
  if (!is_last || !failure_.ok()) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(Begin());
  return SupplyRest();
}

absl::Status InBackwardSteps::SupplyRest() {
  for (size_t i = 0; i < supplied_.size(); ++i) {
    if (Wants(i)) TERRACE_RETURN_IF_ERROR(Supply(i));
  }
  const absl::Status status = step_->EndSupply();
  if (!status.ok()) return Fail(status);
  DropStepped();
  return absl::OkStatus();
}

void InBackwardSteps::PassBroke() {
  came_.clear();
  GiveUp(absl::FailedPreconditionError(
      "a backward pass failed after it had stepped some of the parameters"));
}

// Begins the step with the present options, unless it has begun.
absl::Status InBackwardSteps::Begin() {
  if (step_ != nullptr) return absl::OkStatus();
  if (optimizer_.incomplete()) {
    return absl::FailedPreconditionError(
        "a step is incomplete; call step() again before backward makes one");
  }
  const absl::Status status =
      GuardedWithoutGraph([this] { return BeginGathered(); });
  if (status.ok()) return status;
  if (optimizer_.incomplete())
    return Fail(status);  // the step has begun all the same
  gathered_.Forget(/*is_incomplete=*/false);
  calls_.ended();
  return status;
}

absl::Status InBackwardSteps::BeginGathered() {
  TERRACE_RETURN_IF_ERROR(calls_.adopt());
  TERRACE_ASSIGN_OR_RETURN(options_, calls_.options());
  std::vector<bool> are_stepped = known_.AreIn(calls_.groups());
  for (size_t i = 0; i < are_stepped.size(); ++i) {
    are_stepped[i] = are_stepped[i] && known_.tensors()[i].requires_grad();
  }
  TERRACE_RETURN_IF_ERROR(
      gathered_.GatherParameters(calls_.source(), are_stepped));
  StepArguments arguments;
  arguments.groups = options_;
  TERRACE_ASSIGN_OR_RETURN(
      step_,
      optimizer_.StartGradual(arguments, gathered_.data(), ExpectedOrder()));
  supplied_.assign(known_.tensors().size(), false);
  is_finished_ = false;
  return absl::OkStatus();
}

// Parameters that were made first get their gradients at the end of backward.
std::vector<int> InBackwardSteps::ExpectedOrder() const {
  std::vector<bool> listed(known_.tensors().size(), false);
  std::vector<int> expected;
  const auto list = [&](int place) {
    const auto index = static_cast<size_t>(place);
    if (listed[index] || !gathered_.IsGathered(index)) return;
    listed[index] = true;
    expected.push_back(place);
  };
  for (const int place : order_) list(place);
  for (auto i = static_cast<int>(listed.size()); i-- > 0;) list(i);
  return expected;
}

bool InBackwardSteps::Wants(size_t place) const {
  return gathered_.IsGathered(place) && !supplied_[place] &&
         known_.tensors()[place].grad().defined();
}

absl::Status InBackwardSteps::Supply(size_t place) {
  supplied_[place] = true;
  const absl::Status status = GuardedWithoutGraph([&]() -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(const GradientData gradient,
                             gathered_.TakeGradient(calls_.source(), place,
                                                    known_.tensors()[place]));
    return step_->Supply(static_cast<int>(place), gradient.values,
                         gradient.dtype);
  });
  if (!status.ok()) return Fail(status);
  DropStepped();
  return absl::OkStatus();
}

void InBackwardSteps::DropStepped() {
  std::vector<int> stepped;
  step_->TakeStepped(&stepped);
  for (const int place : stepped) {
    gathered_.DropGradient(calls_.source(), static_cast<size_t>(place));
  }
}

absl::Status InBackwardSteps::Fail(const absl::Status& why) {
  failure_ = Reworded(
      why, absl::StrCat("a step that backward began failed, and its parameters "
                        "are stepped in part: ",
                        why.message(), "; resume from the last checkpoint"));
  if (step_ != nullptr) step_->GiveUp(why.message());
  step_.reset();
  gathered_.Forget(/*is_incomplete=*/false);
  calls_.ended();
  return failure_;
}

}  // namespace terrace
