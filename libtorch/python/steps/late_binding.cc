// The late steps of OptimizerBinding.
#include <utility>

#include "base/status_macros.h"
#include "libtorch/guarded.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/python/group_numbers.h"
#include "libtorch/python/optimizer_binding.h"

namespace terrace {

Outcome OptimizerBinding::StepLate(const std::vector<at::Tensor>& parameters,
                                   const at::Tensor& group_of,
                                   const std::vector<double>& numbers,
                                   double loss_scale) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(StepLateLocked(parameters, group_of, numbers, loss_scale));
}

absl::Status OptimizerBinding::StepLateLocked(
    const std::vector<at::Tensor>& parameters, const at::Tensor& group_of,
    const std::vector<double>& numbers, double loss_scale) {
  TERRACE_RETURN_IF_ERROR(SettleLate(Late::kTryAgain));
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, specs_.size()));
  LateArguments arguments;
  TERRACE_ASSIGN_OR_RETURN(arguments.groups,
                           AdamOfEach(groups, numbers, options_));
  arguments.loss_scale = loss_scale;
  arguments.retry = "optimizer.flush()";
  absl::Status status;
  // A copy may find no memory.
  status.Update(Guarded(c10::kCPU, [&] {
    status = tensors_.Locate(specs_, parameters, groups, /*again=*/false);
    if (status.ok()) status = tensors_.Release(specs_, &arguments);
  }));
  if (!status.ok()) {
    tensors_.Forget();
    return status;
  }
  status = late_->Begin(std::move(arguments));
  if (late_->HasStep()) return status;
  tensors_.EndLate();
  if (status.ok()) Accumulate(optimizer_->last_report(), total_);
  return status;
}

Outcome OptimizerBinding::Flush() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(SettleLate(Late::kTryAgain));
}

Outcome OptimizerBinding::Settle() {
  if (!CheckProcess().ok()) return ToOutcome(absl::OkStatus());
  MutexLock lock(mutex_);
  return ToOutcome(SettleLate(Late::kTell));
}

Outcome OptimizerBinding::AwaitUpdates(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return ToOutcome(absl::OkStatus());
  return ToOutcome(OperationNet::Get().Await(tensor.storage(),
                                             /*is_written=*/true));
}

absl::Status OptimizerBinding::SettleLate(Late how) {
  if (late_ == nullptr || !late_->HasStep()) return absl::OkStatus();
  if (how == Late::kQuietly) TERRACE_RETURN_IF_ERROR(late_->Wait());
  TERRACE_RETURN_IF_ERROR(how == Late::kTryAgain
                              ? late_->Finish(absl::InfiniteFuture())
                              : late_->Settle());
  tensors_.EndLate();
  Accumulate(optimizer_->last_report(), total_);
  return absl::OkStatus();
}

bool OptimizerBinding::DropLate() {
  if (SettleLate(Late::kQuietly).ok()) return false;
  late_->GiveUp();
  tensors_.EndLate();
  return true;
}

}  // namespace terrace
