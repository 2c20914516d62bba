// What users write into the state between steps.
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/python/optimizer_binding.h"

namespace terrace {
namespace {

absl::Status EditOne(OffloadedOptimizer& optimizer, int64_t parameter,
                     OffloadedOptimizer::StateKind kind,
                     const at::Tensor& values) {
  if (values.numel() == 0) return absl::OkStatus();
  if (values.scalar_type() != at::kFloat || !values.device().is_cpu() ||
      !values.is_contiguous()) {
    return absl::InvalidArgumentError(
        "state is contiguous float32 elements in CPU memory");
  }
  return optimizer.WriteState(
      static_cast<int>(parameter), kind, 0,
      absl::MakeConstSpan(values.const_data_ptr<float>(),
                          static_cast<size_t>(values.numel())),
      absl::Now() + kTransferPatience);
}

}  // namespace

Outcome OptimizerBinding::Edit(int64_t parameter, const at::Tensor& master,
                               const at::Tensor& first_moment,
                               const at::Tensor& second_moment) {
  using Kind = OffloadedOptimizer::StateKind;
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  absl::Status status = CheckOpen();
  const std::pair<Kind, const at::Tensor*> given[] = {
      {Kind::kMaster, &master},
      {Kind::kFirstMoment, &first_moment},
      {Kind::kSecondMoment, &second_moment}};
  for (const auto& [kind, values] : given) {
    if (status.ok()) status = EditOne(*optimizer_, parameter, kind, *values);
  }
  return ToOutcome(status);
}

Outcome OptimizerBinding::Forget(const std::vector<int64_t>& parameters) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  absl::Status status = CheckOpen();
  for (const int64_t parameter : parameters) {
    if (!status.ok()) break;
    status = optimizer_->ForgetState(static_cast<int>(parameter));
  }
  return ToOutcome(status);
}

}  // namespace terrace
