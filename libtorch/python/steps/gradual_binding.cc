// The gradual steps of OptimizerBinding.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/guarded.h"
#include "libtorch/python/group_numbers.h"
#include "libtorch/python/optimizer_binding.h"

namespace terrace {
namespace {

// Updates that take longer after the last gradient are stuck.
constexpr absl::Duration kPatience = absl::Hours(1);

absl::Status NoneBegan() {
  return absl::FailedPreconditionError("no step began in backward");
}

}  // namespace

Outcome OptimizerBinding::BeginGradual(
    const std::vector<at::Tensor>& parameters, const at::Tensor& group_of,
    const std::vector<double>& numbers, const std::vector<int64_t>& order) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(BeginGradualLocked(parameters, group_of, numbers, order));
}

absl::Status OptimizerBinding::BeginGradualLocked(
    const std::vector<at::Tensor>& parameters, const at::Tensor& group_of,
    const std::vector<double>& numbers, const std::vector<int64_t>& order) {
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  gradual_.reset();
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, specs_.size()));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<AdamOptions> adam,
                           AdamOfEach(groups, numbers, options_));
  absl::Status status;
  // A copy may find no memory, or no device.
  status.Update(Guarded(c10::kCPU, [&] {
    status = tensors_.LocateParameters(specs_, parameters, groups);
  }));
  if (status.ok()) {
    StepArguments arguments;
    arguments.groups = adam;
    const std::vector<int> places(order.begin(), order.end());
    auto begun = optimizer_->StartGradual(arguments, tensors_.data(), places);
    status = begun.status();
    if (begun.ok()) gradual_ = *std::move(begun);
  }
  if (!status.ok()) tensors_.Forget();
  return status;
}

Outcome OptimizerBinding::Supply(int64_t place, const at::Tensor& parameter) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(SupplyLocked(place, parameter));
}

absl::Status OptimizerBinding::SupplyLocked(int64_t place,
                                            const at::Tensor& parameter) {
  if (gradual_ == nullptr) return NoneBegan();
  const auto index = static_cast<size_t>(place);
  if (place < 0 || index >= specs_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient of parameter ", place, " of ", specs_.size()));
  }
  GradientData gradient;
  absl::Status status;
  status.Update(Guarded(c10::kCPU, [&] {
    const absl::StatusOr<GradientData> taken =
        tensors_.TakeGradient(specs_[index], parameter, index);
    status = taken.status();
    if (taken.ok()) gradient = *taken;
  }));
  if (status.ok()) {
    status = gradual_->Supply(static_cast<int>(place), gradient.values,
                              gradient.dtype);
  }
  return AfterSupply(std::move(status));
}

absl::Status OptimizerBinding::AfterSupply(absl::Status status) {
  std::vector<int> stepped;
  gradual_->TakeStepped(&stepped);
  for (const int parameter : stepped) {
    tensors_.Drop(static_cast<size_t>(parameter));
  }
  return status;
}

Outcome OptimizerBinding::EndSupply() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  if (gradual_ == nullptr) return ToOutcome(NoneBegan());
  return ToOutcome(AfterSupply(gradual_->EndSupply()));
}

Outcome OptimizerBinding::FinishGradual() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(FinishGradualLocked());
}

absl::Status OptimizerBinding::FinishGradualLocked() {
  if (gradual_ == nullptr) return NoneBegan();
  const absl::Status status = gradual_->Finish(absl::Now() + kPatience);
  gradual_.reset();
  const absl::Status returned =
      Guarded(c10::kCPU, [&] { tensors_.Return(true, false); });
  TERRACE_RETURN_IF_ERROR(status);
  if (!returned.ok()) {
    return absl::DataLossError(
        absl::StrCat("parameters out of order were stepped and could not be "
                     "given their new values: ",
                     returned.message()));
  }
  Accumulate(optimizer_->last_report(), total_);
  return absl::OkStatus();
}

Outcome OptimizerBinding::GiveUpGradual(const std::string& why) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  if (gradual_ == nullptr) return ToOutcome(absl::OkStatus());
  gradual_->GiveUp(why);
  gradual_.reset();
  tensors_.Forget();
  return ToOutcome(absl::OkStatus());
}

}  // namespace terrace
