#include "runtime/optimizer/chunked_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/optimizer_kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/floating_point.h"
#include "runtime/base/status_macros.h"

namespace terrace {
namespace {

// The inverse of the loss scale times the clip factor:
// 1 / (scale * max(1, (norm/scale + 1e-6) / clip)); a norm that is NaN gives
// NaN, as in PyTorch.
float GradientMultiplier(double squared_norm, double scale, double clip) {
  double divisor = scale;
  if (clip > 0) {
    const double ratio = (std::sqrt(squared_norm) / scale + 1e-6) / clip;
    if (!(ratio <= 1)) divisor *= ratio;
  }
  return static_cast<float>(1.0 / divisor);
}

}  // namespace

ChunkedOptimizer::ChunkedOptimizer(Runtime& runtime,
                                   const OptimizerOptions& options)
    : runtime_(runtime),
      options_(options),
      executor_(runtime.executor()),
      tasks_(std::make_unique<Tasks>(chunks_, runtime)),
      meter_(tasks_->meter),
      staging_(tasks_->staging),
      pipeline_(tasks_->pipeline),
      pass_(tasks_->pass) {}

// The names are free again, and the room. What may be refused is that of a
// runtime that is closed, where nothing is left to give back.
ChunkedOptimizer::~ChunkedOptimizer() {
  if (!IsOwnProcess()) {
    static_cast<void>(tasks_.release());
    static_cast<void>(queue_.release());
    return;
  }
  meter_.WaitForAll();
  queue_.reset();
  for (size_t i = 0; i < chunks_.size(); ++i) {
    runtime_.Unregister(pipeline_.tensor(static_cast<int>(i))).IgnoreError();
  }
}

absl::Status ChunkedOptimizer::Step(const StepArguments& arguments,
                                    absl::Span<const ParameterData> parameters,
                                    Time deadline) {
  const absl::Time end = runtime_.clock().FromWall(deadline);
  TERRACE_RETURN_IF_ERROR(Start(arguments, parameters, end));
  while (!Advance()) {
    if (phase_ != Phase::kUpdate) {
      meter_.WaitForAll();
    } else if (!pipeline_.Wait(end)) {
      pipeline_.Abandon(absl::DeadlineExceededError(
          absl::StrCat("step ", report_.step, ": ", pipeline_.missing(), " of ",
                       chunks_.size(), " chunks are missing at the deadline")));
    }
  }
  return result_;
}

absl::Status ChunkedOptimizer::Start(const StepArguments& arguments,
                                     absl::Span<const ParameterData> parameters,
                                     absl::Time deadline) {
  const DefaultFloatingPoint mode;
  TERRACE_RETURN_IF_ERROR(CheckFree("no step"));
  if (phase_ != Phase::kIdle) {
    return absl::FailedPreconditionError("a step is running");
  }
  TERRACE_RETURN_IF_ERROR(CheckLoaded("no step can be made"));
  TERRACE_ASSIGN_OR_RETURN(StepSettings settings,
                           CheckStep(options_, specs_, arguments, parameters));
  if (incomplete_) {
    TERRACE_RETURN_IF_ERROR(
        CheckSameStep(settings_, parameters_, settings, parameters));
  } else {
    TERRACE_RETURN_IF_ERROR(apart_.Check(specs_, parameters));
    TERRACE_RETURN_IF_ERROR(CheckMasters());
  }
  meter_.Begin();
  TERRACE_RETURN_IF_ERROR(PrepareStaging(arguments, parameters));
  report_ = {.step = step_ + 1,
             .bytes_from_devices = -staging_.bytes_from_devices(),
             .bytes_to_devices = -staging_.bytes_to_devices()};
  result_ = absl::FailedPreconditionError("the step is running");
  settings_ = std::move(settings);
  parameters_.assign(parameters.begin(), parameters.end());
  update_.parameters = parameters_;
  deadline_ = deadline;
  if (incomplete_) {
    Launch(Phase::kRecognise, GradientPass::Kind::kFingerprint, OwnGradients());
    return absl::OkStatus();
  }
  MakeScalars();
  gradient_norm_ = 0;
  if (settings_.max_gradient_norm > 0 || settings_.skip_nonfinite ||
      settings_.loss_scale != 1) {
    if (arguments.norm_gradients) {
      Launch(Phase::kNorm, GradientPass::Kind::kNorm,
             *arguments.norm_gradients);
    } else {
      Launch(Phase::kNorm, GradientPass::Kind::kNorm, OwnGradients());
    }
    return absl::OkStatus();
  }
  update_.gradient_multiplier = 1;
  Attempt();
  return absl::OkStatus();
}

// A load that ended in the middle of a master must not go unnoticed.
absl::Status ChunkedOptimizer::CheckMasters() const {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const int64_t written = masters_written_[i];
    if (written == 0 || written == specs_[i].count) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", specs_[i].name, "' has a master of which ", written,
        " of ", specs_[i].count, " elements were written"));
  }
  return absl::OkStatus();
}

// Slots for what is on devices, whose queued work ends here.
absl::Status ChunkedOptimizer::PrepareStaging(
    const StepArguments& arguments,
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
  update_.staging = nullptr;
  if (devices.empty()) return absl::OkStatus();
  int64_t slot_bytes = GradientPass::kSlotBytes;
  for (const Chunk& chunk : chunks_) {
    slot_bytes = std::max(slot_bytes, StagedChunk::Bytes(chunk, parameters));
  }
  TERRACE_RETURN_IF_ERROR(staging_.Prepare(*devices.front(), slot_bytes));
  for (Device* device : devices) {
    TERRACE_RETURN_IF_ERROR(device->Synchronize());
  }
  update_.staging = &staging_;
  return absl::OkStatus();
}

// Each parameter's by its own count of steps; most share them with the one
// before.
void ChunkedOptimizer::MakeScalars() {
  scalars_.resize(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const AdamOptions& options = settings_.group(specs_[i].group);
    const bool same = i > 0 && parameter_steps_[i] == parameter_steps_[i - 1] &&
                      options == settings_.group(specs_[i - 1].group);
    scalars_[i] = same ? scalars_[i - 1]
                       : MakeAdamScalars(options, parameter_steps_[i] + 1);
  }
  update_.scalars = scalars_;
}

bool ChunkedOptimizer::Advance() {
  if (!IsOwnProcess()) {
    result_ = CheckUsable();
    return true;
  }
  const DefaultFloatingPoint mode;
  while (phase_ != Phase::kIdle) {
    if (phase_ == Phase::kUpdate) {
      if (!pipeline_.Advance()) return false;
      EndUpdate();
      continue;
    }
    if (meter_.running() > 0) return false;
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

std::vector<GradientData> ChunkedOptimizer::OwnGradients() const {
  std::vector<GradientData> gradients;
  gradients.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    gradients.push_back({parameters_[i].gradient, parameters_[i].gradient_dtype,
                         specs_[i].count, parameters_[i].device});
  }
  return gradients;
}

void ChunkedOptimizer::Launch(Phase phase, GradientPass::Kind kind,
                              absl::Span<const GradientData> gradients) {
  phase_ = phase;
  pass_ = std::make_unique<GradientPass>(kind, gradients);
  pass_->Launch(executor_, meter_, update_.staging);
}

void ChunkedOptimizer::EndNorm() {
  if (absl::Status status = pass_->status(); !status.ok()) {
    return Finish(std::move(status));
  }
  const double squared = pass_->SquaredNorm();
  gradient_norm_ = std::sqrt(squared) / settings_.loss_scale;
  if (settings_.skip_nonfinite && !std::isfinite(squared)) {
    report_.skipped = true;
    return Finish(absl::OkStatus());
  }
  update_.gradient_multiplier = GradientMultiplier(
      squared, settings_.loss_scale, settings_.max_gradient_norm);
  Attempt();
}

void ChunkedOptimizer::EndRecognise() {
  if (absl::Status status = pass_->status(); !status.ok()) {
    return Finish(std::move(status));
  }
  if (pass_->Fingerprint() != fingerprint_) {
    return Finish(absl::FailedPreconditionError(
        absl::StrCat("step ", step_ + 1,
                     " is incomplete and the gradients are not those it began "
                     "with")));
  }
  Attempt();
}

// Begins or takes up the update of the chunks that are missing.
void ChunkedOptimizer::Attempt() {
  phase_ = Phase::kUpdate;
  if (!incomplete_) {
    std::vector<bool> wanted(chunks_.size(), false);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      for (const Segment& segment : chunks_[i].segments) {
        const auto parameter = static_cast<size_t>(segment.parameter);
        if (parameters_[parameter].gradient != nullptr) wanted[i] = true;
      }
    }
    pipeline_.BeginStep(wanted);
    incomplete_ = true;
    has_fingerprint_ = false;
  }
  pipeline_.BeginAttempt(update_, deadline_);
  if (queue_ == nullptr) return;
  absl::Status status = queue_->BeginStep(step_ + 1);
  if (!status.ok()) pipeline_.Abandon(std::move(status));
}

void ChunkedOptimizer::EndUpdate() {
  absl::Status status = pipeline_.error();
  if (status.ok()) {
    TERRACE_CHECK(pipeline_.missing() == 0);
    if (queue_ != nullptr) status = queue_->CommitStep({step_ + 1});
    if (status.ok()) {
      CountStep();
      return Finish(absl::OkStatus());
    }
    pipeline_.Abandon(status);
  } else {
    // The first error is the one to tell.
    queue_->AbortStep().IgnoreError();
  }
  if (absl::IsDataLoss(status)) {
    poison_ = status;
    return Finish(std::move(status));
  }
  // A later attempt has brought the gradients of the first.
  if (has_fingerprint_) return Finish(std::move(status));
  Launch(Phase::kFingerprint, GradientPass::Kind::kFingerprint, OwnGradients());
}

// Without it nobody could tell whether the next attempt is at the same step.
void ChunkedOptimizer::EndFingerprint() {
  fingerprint_ = pass_->Fingerprint();
  has_fingerprint_ = pass_->status().ok();
  if (const absl::Status status = pass_->status(); !status.ok()) {
    poison_ = absl::FailedPreconditionError(
        absl::StrCat("step ", step_ + 1, " is incomplete and its gradients ",
                     "could not be read again: ", status.message()));
  }
  Finish(pipeline_.error());
}

void ChunkedOptimizer::CountStep() {
  incomplete_ = false;
  ++step_;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (parameters_[i].gradient == nullptr) continue;
    ++parameter_steps_[i];
    masters_written_[i] = specs_[i].count;
  }
}

void ChunkedOptimizer::Finish(absl::Status result) {
  phase_ = Phase::kIdle;
  pass_.reset();
  result_ = std::move(result);
  report_.gradient_norm = gradient_norm_;
  meter_.Fill(report_);
  report_.staging_bytes = staging_.bytes();
  report_.bytes_from_devices += staging_.bytes_from_devices();
  report_.bytes_to_devices += staging_.bytes_to_devices();
}

}  // namespace terrace
