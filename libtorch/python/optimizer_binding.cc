#include "libtorch/python/optimizer_binding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "libtorch/guarded.h"
#include "libtorch/python/group_numbers.h"

namespace terrace {
namespace {

// A step that takes longer is stuck.
constexpr absl::Duration kStepPatience = absl::Hours(1);
constexpr absl::Duration kStateClosePatience = absl::Seconds(30);

// Each a group of its own, from the place `first` on: a step says which
// numbers are whose.
absl::StatusOr<std::vector<ParameterSpec>> DescribeTensors(
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names, size_t first) {
  if (names.size() != parameters.size()) {
    return absl::InvalidArgumentError("a name for each parameter");
  }
  std::vector<ParameterSpec> specs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(ParameterSpec spec,
                             DescribeTensor(parameters[i], names[i]));
    spec.group = static_cast<int>(first + i);
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

OptimizerBinding::~OptimizerBinding() {
  if (process_.IsCurrent()) return;
  // A forked child: none of the threads is here, and a lock may be held by
  // one of them for ever.
  transfer_.Leak();
  static_cast<void>(commit_.release());
  static_cast<void>(checkpoint_.release());
  static_cast<void>(gradual_.release());
  static_cast<void>(late_.release());
  static_cast<void>(optimizer_.release());
  static_cast<void>(runtime_.release());
}

absl::Status OptimizerBinding::CheckProcess() const {
  if (process_.IsCurrent()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this optimizer belongs to process ", process_.id(),
                   "; a forked child cannot use it"));
}

Outcome OptimizerBinding::Check() { return ToOutcome(CheckProcess()); }

absl::Status OptimizerBinding::CheckOpen() {
  transfer_.End();
  return CheckNotClosed();
}

absl::Status OptimizerBinding::CheckNotClosed() {
  TERRACE_RETURN_IF_ERROR(SettleLate(Late::kTell));
  if (optimizer_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("this optimizer is closed");
}

Outcome OptimizerBinding::Open(
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names, const std::string& options,
    const std::optional<c10::intrusive_ptr<OffloadBinding>>& model) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  auto read = ReadBindingOptions(options);
  if (!read.ok()) return ToOutcome(read.status());
  auto specs = DescribeTensors(parameters, names, 0);
  if (!specs.ok()) return ToOutcome(specs.status());
  std::shared_ptr<OffloadPlace> place;
  if (model.has_value()) {
    auto found = (*model)->Place();
    if (!found.ok()) return ToOutcome(found.status());
    place = *std::move(found);
  }
  MutexLock lock(mutex_);
  tensors_.Expect(parameters, 0);
  return ToOutcome(OpenLocked(*std::move(specs), *read, std::move(place)));
}

absl::Status OptimizerBinding::OpenLocked(std::vector<ParameterSpec> specs,
                                          const BindingOptions& asked,
                                          std::shared_ptr<OffloadPlace> place) {
  TERRACE_RETURN_IF_ERROR(CloseLocked());
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
  closed_ = false;
  total_ = StepReport();
  return absl::OkStatus();
}

Outcome OptimizerBinding::Add(const std::vector<at::Tensor>& parameters,
                              const std::vector<std::string>& names) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  auto specs = DescribeTensors(parameters, names, specs_.size());
  if (!specs.ok()) return ToOutcome(specs.status());
  absl::Status status = CheckOpen();
  if (status.ok()) status = runtime_->Extend(specs_, *specs);
  if (status.ok()) {
    status = optimizer_->AddParameters(*specs);
    runtime_->EndExtension(status.ok());
  }
  if (status.ok()) {
    tensors_.Expect(parameters, specs_.size());
    specs_.insert(specs_.end(), specs->begin(), specs->end());
  }
  return ToOutcome(status);
}

Outcome OptimizerBinding::Step(const std::vector<at::Tensor>& parameters,
                               const at::Tensor& group_of,
                               const std::vector<double>& numbers,
                               double loss_scale,
                               const std::vector<at::Tensor>& everything) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  return ToOutcome(
      StepLocked(parameters, group_of, numbers, loss_scale, everything));
}

absl::Status OptimizerBinding::StepLocked(
    const std::vector<at::Tensor>& parameters, const at::Tensor& group_of,
    const std::vector<double>& numbers, double loss_scale,
    const std::vector<at::Tensor>& everything) {
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const int64_t> groups,
                           GroupsIn(group_of, specs_.size()));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<AdamOptions> adam,
                           AdamOfEach(groups, numbers, options_));
  absl::Status status;
  // A copy may find no memory, or no device.
  status.Update(Guarded(c10::kCPU, [&] {
    status = norm_tensors_.Locate(everything);
    if (!status.ok()) return;
    status =
        tensors_.Locate(specs_, parameters, groups, optimizer_->incomplete());
  }));
  if (!status.ok()) {
    tensors_.Forget();
    norm_tensors_.Clear();
    return status;
  }
  StepArguments arguments;
  arguments.loss_scale = loss_scale;
  arguments.groups = adam;
  if (!everything.empty()) arguments.norm_gradients = norm_tensors_.data();
  status =
      optimizer_->Step(arguments, tensors_.data(), absl::Now() + kStepPatience);
  // A step that failed may have written some of them.
  const bool written = status.ok() ? !optimizer_->last_report().skipped
                                   : optimizer_->incomplete();
  const absl::Status returned = Guarded(
      c10::kCPU, [&] { tensors_.Return(written, optimizer_->incomplete()); });
  norm_tensors_.Clear();
  if (!returned.ok()) {
    // The state is that of a step whose parameters are gone with the copies.
    status = absl::DataLossError(
        absl::StrCat("parameters out of order were stepped and could not be "
                     "given their new values: ",
                     returned.message()));
  }
  if (status.ok()) Accumulate(optimizer_->last_report(), total_);
  return status;
}

bool OptimizerBinding::Skipped() {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  if (late_ != nullptr && late_->HasStep()) return false;  // it has updates
  return optimizer_ != nullptr && optimizer_->last_report().skipped;
}

bool OptimizerBinding::Incomplete() {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  SettleLate(Late::kQuietly).IgnoreError();
  return optimizer_ != nullptr && optimizer_->incomplete();
}

Outcome OptimizerBinding::Read(int64_t parameter, int64_t offset,
                               const at::Tensor& master,
                               const at::Tensor& first_moment,
                               const at::Tensor& second_moment) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  absl::Status status = CheckNotClosed();
  if (status.ok()) {
    status = transfer_.Read(*optimizer_, parameter, offset, master,
                            first_moment, second_moment);
  }
  return ToOutcome(status);
}

void OptimizerBinding::EndReading() {
  if (!CheckProcess().ok()) return;
  MutexLock lock(mutex_);
  transfer_.EndReading();
}

Outcome OptimizerBinding::Write(int64_t parameter, int64_t offset,
                                const at::Tensor& master,
                                const at::Tensor& first_moment,
                                const at::Tensor& second_moment) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  DropLate();
  absl::Status status = CheckNotClosed();
  if (status.ok()) {
    status = transfer_.Write(*optimizer_, parameter, offset, master,
                             first_moment, second_moment);
  }
  return ToOutcome(status);
}

std::vector<int64_t> OptimizerBinding::Steps() {
  if (!CheckProcess().ok()) return {};
  MutexLock lock(mutex_);
  SettleLate(Late::kQuietly).IgnoreError();
  if (optimizer_ == nullptr) return {};
  const absl::Span<const int64_t> steps = optimizer_->parameter_steps();
  return {steps.begin(), steps.end()};
}

Outcome OptimizerBinding::SetSteps(int64_t step,
                                   const std::vector<int64_t>& steps) {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  absl::Status status = CheckNotClosed();
  if (status.ok()) status = transfer_.SetSteps(*optimizer_, step, steps);
  return ToOutcome(status);
}

Outcome OptimizerBinding::Reset() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  MutexLock lock(mutex_);
  DropLate();
  absl::Status status = CheckOpen();
  if (status.ok()) status = optimizer_->Reset(absl::Now() + kStepPatience);
  if (status.ok()) transfer_.Renew();
  return ToOutcome(status);
}

std::tuple<Outcome, double> OptimizerBinding::WaitedSeconds() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {ToOutcome(status), 0};
  }
  MutexLock lock(mutex_);
  SettleLate(Late::kQuietly).IgnoreError();
  if (optimizer_ != nullptr) {
    return {ToOutcome(absl::OkStatus()),
            absl::ToDoubleSeconds(late_->waited())};
  }
  return {ToOutcome(closed_ ? CheckNotClosed() : absl::OkStatus()), 0};
}

std::tuple<Outcome, std::string> OptimizerBinding::Stats() {
  if (absl::Status status = CheckProcess(); !status.ok()) {
    return {ToOutcome(status), ""};
  }
  MutexLock lock(mutex_);
  SettleLate(Late::kQuietly).IgnoreError();
  if (optimizer_ == nullptr) {
    return {ToOutcome(closed_ ? CheckNotClosed() : absl::OkStatus()),
            StatsAsJson({}, {}, 0, {}, {}, absl::ZeroDuration())};
  }
  const absl::Span<const int64_t> steps = optimizer_->parameter_steps();
  return {ToOutcome(absl::OkStatus()),
          StatsAsJson(
              runtime_->GetStats(), optimizer_->plan(),
              steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()),
              optimizer_->last_report(), total_, late_->waited())};
}

Outcome OptimizerBinding::Close() {
  if (!CheckProcess().ok()) return ToOutcome(absl::OkStatus());
  MutexLock lock(mutex_);
  closed_ = true;
  const bool was_told = late_ != nullptr && late_->is_told();
  absl::Status late = SettleLate(Late::kTell);
  if (was_told) late = absl::OkStatus();
  const absl::Status closed = CloseLocked();
  return ToOutcome(late.ok() ? closed : late);
}

absl::Status OptimizerBinding::CloseLocked() {
  transfer_.End();
  DropLate();
  late_.reset();
  gradual_.reset();
  tensors_.Forget();
  optimizer_.reset();
  if (runtime_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<StateRuntime> runtime = std::move(runtime_);
  return runtime->Close(absl::Now() + kStateClosePatience);
}

}  // namespace terrace
