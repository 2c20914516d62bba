#include "libtorch/optimizer/joined_offload.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/tensor_check.h"
#include "terrace/torch/hook.h"

namespace terrace {
namespace {

constexpr absl::Duration kClosePatience = absl::Seconds(30);

// None is another hook's: steps would bring it into that one's window, beside
// its budget.
absl::Status CheckOwn(const Hook& hook,
                      absl::Span<const at::Tensor> parameters) {
  std::vector<std::string> others;
  for (const at::Tensor& parameter : parameters) {
    if (!IsOffloaded(parameter) || hook.Manages(parameter)) continue;
    others.push_back(absl::StrCat("'", OffloadedName(parameter), "'"));
  }
  if (others.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parameters are another Offload's, and are stepped by an optimizer that "
      "is made with that one: ",
      absl::StrJoin(others, ", ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JoinedOffload>> JoinedOffload::Join(
    std::shared_ptr<OffloadPlace> place,
    absl::Span<const at::Tensor> parameters,
    const std::vector<ParameterSpec>& specs, OptimizerOptions& options,
    Calls calls) {
  TERRACE_RETURN_IF_ERROR(CheckOwn(place->hook(), parameters));
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<StateRuntime> state,
      StateRuntime::Join(specs, place->asked(), place, options));
  return std::unique_ptr<JoinedOffload>(
      new JoinedOffload(std::move(place), std::move(state), std::move(calls)));
}

JoinedOffload::JoinedOffload(std::shared_ptr<OffloadPlace> place,
                             std::unique_ptr<StateRuntime> state, Calls calls)
    : calls_(std::move(calls)),
      place_(std::move(place)),
      state_(std::move(state)),
      gradients_(MakeGradients()) {
  place_->joined().Add(*this);
}

std::unique_ptr<Gradients> JoinedOffload::MakeGradients() const {
  return std::make_unique<Gradients>(
      [place = place_.get()](const NamedTensor& leaf) {
        return place->hook().ManageGradient(leaf);
      });
}

JoinedOffload::~JoinedOffload() {
  if (process_.IsCurrent()) {
    Leave().IgnoreError();
    return;
  }
  // A lock may be held by one of the threads that a forked child does not have.
  static_cast<void>(state_.release());
  static_cast<void>(new std::shared_ptr<OffloadPlace>(std::move(place_)));
}

absl::Status JoinedOffload::Watch(absl::Span<const at::Tensor> parameters) {
  if (gradients_ == nullptr || place_->plan().all_in_memory) {
    return absl::OkStatus();
  }
  std::vector<NamedTensor> leaves;
  for (const at::Tensor& parameter : parameters) {
    if (!place_->hook().Manages(parameter)) continue;
    // Those of inference mode stay frozen.
    if (parameter.is_inference() && !parameter.requires_grad()) continue;
    leaves.push_back({OffloadedName(parameter), parameter});
    TERRACE_RETURN_IF_ERROR(place_->hook().ManageGradient(leaves.back()));
  }
  return gradients_->Add(leaves, Gradients::Frozen::kTaken);
}

absl::Status JoinedOffload::SetGradientsBelow(
    bool are_below, absl::Span<const at::Tensor> parameters) {
  gradients_ = are_below ? MakeGradients() : nullptr;
  return Watch(parameters);
}

absl::Status JoinedOffload::Extend(OffloadedOptimizer& optimizer,
                                   absl::Span<const at::Tensor> parameters,
                                   std::vector<ParameterSpec> specs) {
  TERRACE_RETURN_IF_ERROR(CheckOwn(place_->hook(), parameters));
  TERRACE_RETURN_IF_ERROR(state_->Extend(optimizer.parameters(), specs));
  absl::Status status = Watch(parameters);
  if (status.ok()) status = optimizer.AddParameters(std::move(specs));
  state_->EndExtension(status.ok());
  return status;
}

void JoinedOffload::EndStep(bool is_complete) {
  device_.EndStep(is_complete);
}

absl::Status JoinedOffload::Leave() {
  if (place_ == nullptr) return absl::OkStatus();
  place_->joined().Remove(*this);
  gradients_.reset();
  EndStep(/*is_complete=*/true);
  const std::unique_ptr<StateRuntime> state = std::move(state_);
  const absl::Status status = state->Close(absl::Now() + kClosePatience);
  place_.reset();
  return status;
}

}  // namespace terrace
