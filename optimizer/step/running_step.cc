#include "optimizer/step/running_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/device.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "optimizer/step/step_check.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// Those that have a gradient of the step, each once.
std::vector<Device*> DevicesOf(const StepArguments& arguments,
                               absl::Span<const ParameterData> parameters) {
  std::vector<Device*> devices;
  const auto add = [&devices](Device* device, const void* gradient) {
    if (device == nullptr || gradient == nullptr) return;
    const auto end = devices.end();
    if (std::find(devices.begin(), end, device) == end) {
      devices.push_back(device);
    }
  };
  for (const ParameterData& data : parameters) add(data.device, data.gradient);
  if (arguments.norm_gradients) {
    for (const GradientData& data : *arguments.norm_gradients) {
      add(data.device, data.values);
    }
  }
  return devices;
}

}  // namespace

RunningStep::RunningStep(OptimizerState& state, StateGuard& guard,
                         ChunkRequests& requests,
                         const OptimizerOptions& options, Runtime& runtime)
    : state_(state),
      guard_(guard),
      requests_(requests),
      options_(options),
      executor_(ExecutorOf(runtime.thread_pool())),
      meter_(ClockOf(runtime)),
      pipeline_(state.chunks, requests, ClockOf(runtime), executor_, meter_) {}

absl::Status RunningStep::Start(const StepArguments& arguments,
                                absl::Span<const ParameterData> parameters,
                                absl::Time deadline) {
  order_.reset();
  return Begin(arguments, parameters, deadline);
}

absl::Status RunningStep::StartLate(const StepArguments& arguments,
                                    absl::Span<const ParameterData> parameters,
                                    absl::Span<const int> order,
                                    absl::Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckLateOrder(state_.specs, order));
  order_ = state_.chunks.InOrderOfFirst(order);
  TERRACE_RETURN_IF_ERROR(Begin(arguments, parameters, deadline));
  // The passes over the gradients end by themselves.
  while (phase_ != Phase::kUpdate && !Advance()) {
    if (phase_ != Phase::kUpdate) pass_->Wait();
  }
  return absl::OkStatus();
}

absl::Status RunningStep::Begin(const StepArguments& arguments,
                                absl::Span<const ParameterData> parameters,
                                absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(
      StepSettings settings,
      CheckStep(options_, state_.specs, arguments, parameters));
  if (incomplete_) {
    TERRACE_RETURN_IF_ERROR(CheckSameStep(
        input_.settings(), input_.parameters(), settings, parameters));
  } else {
    TERRACE_RETURN_IF_ERROR(apart_.Check(state_.specs, parameters));
    TERRACE_RETURN_IF_ERROR(state_.counts.CheckMasters(state_.specs));
  }
  TERRACE_RETURN_IF_ERROR(
      Open(arguments, std::move(settings), parameters, parameters));
  gradual_ = false;
  deadline_ = deadline;
  if (incomplete_ && order_.has_value() && !fingerprint_.has_value()) {
    Attempt();  // gradients that were used may be gone
    return absl::OkStatus();
  }
  if (incomplete_) {
    Launch(Phase::kRecognise, GradientPass::Kind::kFingerprint,
           input_.Gradients(state_.specs));
    return absl::OkStatus();
  }
  input_.BeginStep(state_.specs, state_.counts.by_parameter());
  if (!input_.NeedsNorm()) {
    Attempt();
  } else if (arguments.norm_gradients) {
    Launch(Phase::kNorm, GradientPass::Kind::kNorm, *arguments.norm_gradients);
  } else {
    Launch(Phase::kNorm, GradientPass::Kind::kNorm,
           input_.Gradients(state_.specs));
  }
  return absl::OkStatus();
}

absl::Status RunningStep::Open(const StepArguments& arguments,
                               StepSettings settings,
                               absl::Span<const ParameterData> stepped,
                               absl::Span<const ParameterData> parameters) {
  meter_.Begin();
  TERRACE_ASSIGN_OR_RETURN(Staging* const staging,
                           PrepareStaging(arguments, stepped));
  report_ = {.step = state_.counts.step() + 1,
             .bytes_from_devices = -staging_.bytes_from_devices(),
             .bytes_to_devices = -staging_.bytes_to_devices()};
  result_ = absl::FailedPreconditionError("the step is running");
  input_.Set(std::move(settings), parameters, staging);
  return absl::OkStatus();
}

absl::Status RunningStep::StartGradual(
    const StepArguments& arguments, absl::Span<const ParameterData> parameters,
    absl::Span<const int> order) {
  const std::vector<ParameterData> expected = WithAllGradients(parameters);
  TERRACE_ASSIGN_OR_RETURN(
      StepSettings settings,
      CheckStep(options_, state_.specs, arguments, expected));
  TERRACE_RETURN_IF_ERROR(CheckGradualStep(settings, arguments, parameters));
  TERRACE_RETURN_IF_ERROR(CheckOrder(state_.specs, parameters, order));
  if (incomplete_) {
    return absl::FailedPreconditionError(
        absl::StrCat("no other step while step ", state_.counts.step() + 1,
                     " is incomplete"));
  }
  TERRACE_RETURN_IF_ERROR(apart_.Check(state_.specs, expected));
  TERRACE_RETURN_IF_ERROR(state_.counts.CheckMasters(state_.specs));
  TERRACE_RETURN_IF_ERROR(
      Open(arguments, std::move(settings), expected, parameters));
  input_.BeginStep(state_.specs, state_.counts.by_parameter());
  phase_ = Phase::kUpdate;
  incomplete_ = gradual_ = true;
  fingerprint_.reset();
  pipeline_.BeginGradual(input_.update(), state_.specs, expected,
                         state_.chunks.InOrder(order));
  absl::Status status = requests_.BeginStep(state_.counts.step() + 1);
  if (!status.ok()) pipeline_.Stop(std::move(status));
  return absl::OkStatus();
}

absl::Status RunningStep::Supply(int parameter, const void* gradient,
                                 DType dtype) {
  TERRACE_RETURN_IF_ERROR(CheckSupplied(state_.specs, input_.parameters(),
                                        parameter, gradient, dtype));
  const auto index = static_cast<size_t>(parameter);
  if (Device* const device = input_.parameters()[index].device) {
    // Its work on the gradient is queued there.
    if (absl::Status status = device->Synchronize(); !status.ok()) {
      pipeline_.Stop(std::move(status));
      return absl::OkStatus();  // Advance tells
    }
  }
  input_.SetGradient(index, gradient, dtype);
  pipeline_.Supply(parameter);
  return absl::OkStatus();
}

void RunningStep::GiveUp(absl::Status why) {
  pipeline_.Stop(std::move(why));
  pipeline_.WaitForTasks();
}

// Slots for what is on devices, whose queued work ends here; null: nothing is.
absl::StatusOr<Staging*> RunningStep::PrepareStaging(
    const StepArguments& arguments,
    absl::Span<const ParameterData> parameters) {
  const std::vector<Device*> devices = DevicesOf(arguments, parameters);
  if (devices.empty()) return nullptr;
  int64_t slot_bytes = GradientPass::kSlotBytes;
  for (const Chunk& chunk : state_.chunks.chunks()) {
    slot_bytes = std::max(slot_bytes, StagedChunk::Bytes(chunk, parameters));
  }
  TERRACE_RETURN_IF_ERROR(staging_.Prepare(*devices.front(), slot_bytes));
  for (Device* device : devices) {
    TERRACE_RETURN_IF_ERROR(device->Synchronize());
  }
  return &staging_;
}

bool RunningStep::Advance() {
  // Until now a gradual step was left alone: it waited for nothing.
  if (gradual_ && is_running()) meter_.Cut(StepMeter::Bucket::kOther);
  while (phase_ != Phase::kIdle) {
    if (phase_ == Phase::kUpdate) {
      if (!pipeline_.Advance()) return false;
      EndUpdate();
      continue;
    }
    if (!pass_->Advance()) return false;
    if (phase_ == Phase::kNorm) {
      EndNorm();
    } else if (phase_ == Phase::kRecognise) {
      EndRecognise();
    } else {
      EndFingerprint();
    }
  }
  return true;
}

bool RunningStep::Wait(absl::Time deadline) {
  if (phase_ == Phase::kUpdate) return pipeline_.Wait(deadline);
  pass_->Wait();
  return true;
}

void RunningStep::WaitForTasks() {
  pipeline_.WaitForTasks();
  if (pass_ != nullptr) pass_->WaitForTasks();
}

void RunningStep::OnDeadline() {
  pipeline_.Stop(absl::DeadlineExceededError(absl::StrCat(
      "step ", report_.step, ": ", pipeline_.missing(), " of ",
      state_.chunks.size(), " chunks are missing at the deadline")));
}

void RunningStep::Clear() {
  pipeline_.Clear();
  incomplete_ = false;
  fingerprint_.reset();
}

void RunningStep::Launch(Phase phase, GradientPass::Kind kind,
                         absl::Span<const GradientData> gradients) {
  phase_ = phase;
  pass_ = std::make_unique<GradientPass>(kind, gradients);
  pass_->Launch(executor_, meter_, input_.update().staging);
}

void RunningStep::EndNorm() {
  if (absl::Status status = pass_->status(); !status.ok()) {
    return Finish(std::move(status));
  }
  const double squared = pass_->SquaredNorm();
  input_.SetSquaredNorm(squared);
  if (input_.settings().skip_nonfinite && !std::isfinite(squared)) {
    report_.skipped = true;
    return Finish(absl::OkStatus());
  }
  Attempt();
}

void RunningStep::EndRecognise() {
  if (absl::Status status = pass_->status(); !status.ok()) {
    return Finish(std::move(status));
  }
  if (pass_->Fingerprint() != fingerprint_) {
    return Finish(absl::FailedPreconditionError(
        absl::StrCat("step ", state_.counts.step() + 1,
                     " is incomplete and the gradients are not those it began "
                     "with")));
  }
  Attempt();
}

// Begins or takes up the update of the chunks that are missing.
void RunningStep::Attempt() {
  phase_ = Phase::kUpdate;
  const bool is_again = std::exchange(incomplete_, true);
  if (!is_again) {
    pipeline_.BeginStep(input_.parameters(), order_.has_value());
    fingerprint_.reset();
  }
  pipeline_.BeginAttempt(input_.update(), deadline_,
                         order_.value_or(std::vector<int>()));
  const int64_t step = state_.counts.step() + 1;
  absl::Status status =
      is_again ? requests_.BeginStepAgain(step) : requests_.BeginStep(step);
  if (!status.ok()) pipeline_.Stop(std::move(status));
}

void RunningStep::EndUpdate() {
  absl::Status status = pipeline_.error();
  if (status.ok()) {
    TERRACE_CHECK(pipeline_.missing() == 0);
    status = requests_.CommitStep(state_.counts.step() + 1);
    if (status.ok()) {
      incomplete_ = false;
      state_.counts.CountStep(state_.specs, input_.parameters());
      return Finish(absl::OkStatus());
    }
    pipeline_.Stop(status);
  } else {
    // The first error is the one to tell.
    requests_.AbortStep().IgnoreError();
  }
  if (absl::IsDataLoss(status)) {
    guard_.Poison(status);
    return Finish(std::move(status));
  }
  if (gradual_) {
    guard_.Poison(absl::FailedPreconditionError(
        absl::StrCat("step ", report_.step,
                     " began before all its gradients were there and "
                     "failed (",
                     status.message(),
                     "): its parameters are stepped in part; "
                     "resume from the last checkpoint")));
    return Finish(std::move(status));
  }
  // A later attempt has brought the gradients of the first. Of a late step
  // those that were used are gone.
  if (fingerprint_.has_value() || order_.has_value()) {
    return Finish(std::move(status));
  }
  Launch(Phase::kFingerprint, GradientPass::Kind::kFingerprint,
         input_.Gradients(state_.specs));
}

// Without it nothing could tell whether the next attempt is at the same step.
void RunningStep::EndFingerprint() {
  if (const absl::Status status = pass_->status(); status.ok()) {
    fingerprint_ = pass_->Fingerprint();
  } else {
    guard_.Poison(absl::FailedPreconditionError(absl::StrCat(
        "step ", state_.counts.step() + 1, " is incomplete and its gradients ",
        "could not be read again: ", status.message())));
  }
  Finish(pipeline_.error());
}

void RunningStep::Finish(absl::Status result) {
  phase_ = Phase::kIdle;
  pass_.reset();
  result_ = std::move(result);
  report_.gradient_norm = input_.gradient_norm();
  meter_.Fill(report_);
  report_.staging_bytes = staging_.bytes();
  report_.bytes_from_devices += staging_.bytes_from_devices();
  report_.bytes_to_devices += staging_.bytes_to_devices();
}

}  // namespace terrace
