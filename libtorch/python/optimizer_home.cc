#include "libtorch/python/optimizer_home.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/python/stats_json.h"

namespace terrace {
namespace {

constexpr absl::Duration kStateClosePatience = absl::Seconds(30);

}  // namespace

OptimizerHome::~OptimizerHome() {
  if (process_.IsCurrent()) return;
  // A forked child: none of the threads is here, and a lock may be held by
  // one of them for ever.
  transfer_.Leak();
  static_cast<void>(gradual_.release());
  static_cast<void>(late_.release());
  static_cast<void>(optimizer_.release());
  static_cast<void>(runtime_.release());
}

absl::Status OptimizerHome::CheckProcess() const {
  if (process_.IsCurrent()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this optimizer belongs to process ", process_.id(),
                   "; a forked child cannot use it"));
}

absl::Status OptimizerHome::Open(std::vector<ParameterSpec> specs,
                                 const BindingOptions& asked,
                                 std::shared_ptr<OffloadPlace> place) {
  TERRACE_RETURN_IF_ERROR(Close());
  OptimizerOptions options;
  options.max_gradient_norm = asked.max_gradient_norm;
  options.skip_nonfinite = asked.skip_nonfinite;
  options.adam.bias_correction = asked.bias_correction;
  if (asked.chunk_bytes > 0) options.chunk_bytes = asked.chunk_bytes;
  auto opened = place == nullptr ? StateRuntime::Open(specs, asked, options)
                                 : StateRuntime::Join(
                                       specs, asked, std::move(place), options);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<StateRuntime> runtime,
                           std::move(opened));
  TERRACE_ASSIGN_OR_RETURN(optimizer_, OffloadedOptimizer::Create(
                                           runtime->runtime(), specs, options));
  late_ = std::make_unique<LateSteps>(*optimizer_);
  transfer_.Renew();
  runtime_ = std::move(runtime);
  specs_ = std::move(specs);
  options_ = asked;
  total_ = StepReport();
  return absl::OkStatus();
}

absl::Status OptimizerHome::Extend(const std::vector<ParameterSpec>& specs) {
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  TERRACE_RETURN_IF_ERROR(runtime_->Extend(specs_, specs));
  const absl::Status status = optimizer_->AddParameters(specs);
  runtime_->EndExtension(status.ok());
  if (status.ok()) specs_.insert(specs_.end(), specs.begin(), specs.end());
  return status;
}

absl::Status OptimizerHome::Close() {
  transfer_.End();
  GiveUpLate();
  late_.reset();
  gradual_.reset();
  EndStep();
  optimizer_.reset();
  if (runtime_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<StateRuntime> runtime = std::move(runtime_);
  return runtime->Close(absl::Now() + kStateClosePatience);
}

absl::Status OptimizerHome::CheckOpen() {
  transfer_.End();
  return CheckNotClosed();
}

absl::Status OptimizerHome::CheckNotClosed() {
  TERRACE_RETURN_IF_ERROR(SettleLate(Late::kTell));
  if (optimizer_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("this optimizer is closed");
}

absl::Status OptimizerHome::SettleLate(Late how) {
  if (late_ == nullptr || !late_->HasStep()) return absl::OkStatus();
  if (how == Late::kQuietly) TERRACE_RETURN_IF_ERROR(late_->Wait());
  TERRACE_RETURN_IF_ERROR(how == Late::kTryAgain
                              ? late_->Flush(absl::InfiniteFuture())
                              : late_->Settle());
  EndStep();
  CountStep();
  return absl::OkStatus();
}

bool OptimizerHome::GiveUpLate() {
  if (SettleLate(Late::kQuietly).ok()) return false;
  late_->GiveUp();
  EndStep();
  return true;
}

StepSource OptimizerHome::Source(absl::Span<const at::Tensor> parameters) {
  return {.specs = specs_,
          .parameters = parameters,
          .devices = devices_,
          .offloaded = &offloaded_,
          .names = StepSource::Names::kSpecs};
}

void OptimizerHome::EndStep() {
  const bool is_incomplete = optimizer_ != nullptr && optimizer_->incomplete();
  gathered_.Forget(is_incomplete);
  offloaded_.EndStep(!is_incomplete);
}

void OptimizerHome::CountStep() {
  Accumulate(optimizer_->last_report(), total_);
}

}  // namespace terrace
