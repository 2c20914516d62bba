#include "terrace/optimizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/optimizer_kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/base/status_macros.h"
#include "runtime/optimizer/chunk_layout.h"
#include "runtime/optimizer/chunk_pipeline.h"
#include "runtime/optimizer/gradient_pass.h"
#include "runtime/optimizer/step_check.h"
#include "runtime/optimizer/step_meter.h"

namespace terrace {
namespace {

// How long Create waits for residents of others to make room.
constexpr absl::Duration kOpenTimeout = absl::Seconds(60);

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

class ChunkedOptimizer final : public OffloadedOptimizer {
 public:
  ChunkedOptimizer(Runtime& runtime, std::vector<ParameterSpec> specs,
                   const OptimizerOptions& options, ChunkPlan plan,
                   std::unique_ptr<RequestQueue> queue,
                   std::vector<TensorId> tensors)
      : specs_(std::move(specs)),
        options_(options),
        plan_(plan.plan),
        chunks_(std::move(plan.chunks)),
        executor_(runtime.executor()),
        meter_(runtime.clock()),
        queue_(std::move(queue)),
        pipeline_(*queue_, chunks_, std::move(tensors),
                  static_cast<int>(plan_.slots), runtime.clock(), executor_,
                  meter_) {}
  ~ChunkedOptimizer() override { meter_.WaitForAll(); }

  absl::Status Step(const StepArguments& arguments,
                    absl::Span<const ParameterData> parameters,
                    Time deadline) override;
  absl::Status Start(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters) override {
    return Start(arguments, parameters, absl::InfiniteFuture());
  }
  bool Advance() override;
  absl::Status result() const override { return result_; }

  int64_t step() const override { return step_; }
  bool incomplete() const override { return incomplete_; }
  const OptimizerPlan& plan() const override { return plan_; }
  const StepReport& last_report() const override { return report_; }

  absl::Status ReadState(int parameter, StateKind kind, absl::Span<float> out,
                         Time deadline) override;

 private:
  enum class Phase : uint8_t {
    kIdle,
    kNorm,         // summing the gradients, nothing changed yet
    kRecognise,    // are these the gradients of the incomplete step?
    kUpdate,       // chunks are under way
    kFingerprint,  // failed: keeping what the next attempt must bring again
  };

  absl::Status Start(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters, Time deadline);
  void Launch(Phase phase, GradientPass::Kind kind);
  void EndNorm();
  void EndRecognise();
  void Attempt();
  void EndUpdate();
  void Finish(absl::Status result);
  void ReadSegment(const Chunk& chunk, const Segment& segment, StateKind kind,
                   absl::Span<const std::byte> payload,
                   absl::Span<float> out) const;

  const std::vector<ParameterSpec> specs_;
  const OptimizerOptions options_;
  const OptimizerPlan plan_;
  const std::vector<Chunk> chunks_;
  Executor& executor_;
  StepMeter meter_;
  const std::unique_ptr<RequestQueue> queue_;
  ChunkPipeline pipeline_;

  // Of the step that is running or incomplete.
  Phase phase_ = Phase::kIdle;
  bool incomplete_ = false;
  StepArguments arguments_;  // with a learning rate
  std::vector<ParameterData> parameters_;
  UpdateStep update_;
  double gradient_norm_ = 0;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<GradientPass> pass_;
  Time deadline_;

  int64_t step_ = 0;  // completed
  absl::Status poison_;
  absl::Status result_;
  StepReport report_;
};

absl::Status ChunkedOptimizer::Step(const StepArguments& arguments,
                                    absl::Span<const ParameterData> parameters,
                                    Time deadline) {
  TERRACE_RETURN_IF_ERROR(Start(arguments, parameters, deadline));
  while (!Advance()) {
    if (phase_ != Phase::kUpdate) {
      meter_.WaitForAll();
    } else if (!pipeline_.Wait(deadline)) {
      pipeline_.Abandon(absl::DeadlineExceededError(
          absl::StrCat("step ", report_.step, ": ", pipeline_.missing(), " of ",
                       chunks_.size(), " chunks are missing at the deadline")));
    }
  }
  return result_;
}

absl::Status ChunkedOptimizer::Start(const StepArguments& arguments,
                                     absl::Span<const ParameterData> parameters,
                                     Time deadline) {
  TERRACE_RETURN_IF_ERROR(poison_);
  if (phase_ != Phase::kIdle) {
    return absl::FailedPreconditionError("a step is running");
  }
  StepArguments resolved = arguments;
  if (!resolved.learning_rate) {
    resolved.learning_rate = options_.adam.learning_rate;
  }
  TERRACE_RETURN_IF_ERROR(CheckStep(specs_, resolved, parameters));
  if (incomplete_) {
    TERRACE_RETURN_IF_ERROR(
        CheckSameStep(arguments_, parameters_, resolved, parameters));
  }
  meter_.Begin();
  report_ = {.step = step_ + 1};
  result_ = absl::FailedPreconditionError("the step is running");
  arguments_ = resolved;
  parameters_.assign(parameters.begin(), parameters.end());
  deadline_ = deadline;
  if (incomplete_) {
    Launch(Phase::kRecognise, GradientPass::Kind::kFingerprint);
    return absl::OkStatus();
  }
  AdamOptions adam = options_.adam;
  adam.learning_rate = *resolved.learning_rate;
  update_ = {.scalars = MakeAdamScalars(adam, step_ + 1),
             .parameters = parameters_};
  gradient_norm_ = 0;
  if (options_.max_gradient_norm > 0 || options_.skip_nonfinite ||
      resolved.loss_scale != 1) {
    Launch(Phase::kNorm, GradientPass::Kind::kNorm);
    return absl::OkStatus();
  }
  update_.gradient_multiplier = 1;
  Attempt();
  return absl::OkStatus();
}

bool ChunkedOptimizer::Advance() {
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
      fingerprint_ = pass_->Fingerprint();
      Finish(pipeline_.error());
    }
  }
  return true;
}

void ChunkedOptimizer::Launch(Phase phase, GradientPass::Kind kind) {
  std::vector<Gradient> gradients;
  gradients.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    gradients.push_back({parameters_[i].gradient, parameters_[i].gradient_dtype,
                         specs_[i].count});
  }
  phase_ = phase;
  pass_ = std::make_unique<GradientPass>(kind, gradients);
  pass_->Launch(executor_, meter_);
}

void ChunkedOptimizer::EndNorm() {
  const double squared = pass_->SquaredNorm();
  gradient_norm_ = std::sqrt(squared) / arguments_.loss_scale;
  if (options_.skip_nonfinite && !std::isfinite(squared)) {
    report_.skipped = true;
    return Finish(absl::OkStatus());
  }
  update_.gradient_multiplier = GradientMultiplier(
      squared, arguments_.loss_scale, options_.max_gradient_norm);
  Attempt();
}

void ChunkedOptimizer::EndRecognise() {
  if (pass_->Fingerprint() != fingerprint_) {
    return Finish(absl::FailedPreconditionError(
        absl::StrCat("step ", step_ + 1,
                     " is incomplete and the gradients are not those it began "
                     "with")));
  }
  update_.parameters = parameters_;
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
  }
  pipeline_.BeginAttempt(update_, deadline_);
  absl::Status status = queue_->BeginStep(step_ + 1);
  if (!status.ok()) pipeline_.Abandon(std::move(status));
}

void ChunkedOptimizer::EndUpdate() {
  absl::Status status = pipeline_.error();
  if (status.ok()) {
    TERRACE_CHECK(pipeline_.missing() == 0);
    status = queue_->CommitStep({step_ + 1});
    if (status.ok()) {
      incomplete_ = false;
      ++step_;
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
  Launch(Phase::kFingerprint, GradientPass::Kind::kFingerprint);
}

void ChunkedOptimizer::Finish(absl::Status result) {
  phase_ = Phase::kIdle;
  pass_.reset();
  result_ = std::move(result);
  report_.gradient_norm = gradient_norm_;
  meter_.Fill(report_);
}

absl::Status ChunkedOptimizer::ReadState(int parameter, StateKind kind,
                                         absl::Span<float> out, Time deadline) {
  TERRACE_RETURN_IF_ERROR(poison_);
  if (phase_ != Phase::kIdle || pipeline_.pushed() > 0) {
    return absl::FailedPreconditionError(
        "the state cannot be read while a step has requests under way");
  }
  if (parameter < 0 || static_cast<size_t>(parameter) >= specs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " of ", specs_.size()));
  }
  const ParameterSpec& spec = specs_[static_cast<size_t>(parameter)];
  if (static_cast<int64_t>(out.size()) != spec.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", spec.name, "' has ", spec.count,
                     " elements, room is given for ", out.size()));
  }
  if (kind == StateKind::kMaster && spec.dtype == DType::kFloat32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", spec.name, "' is fp32 and has no master of its own"));
  }
  for (size_t i = 0; i < chunks_.size(); ++i) {
    for (const Segment& segment : chunks_[i].segments) {
      if (segment.parameter != parameter) continue;
      Pin pin;
      if (!pipeline_.fresh(static_cast<int>(i))) {
        TERRACE_ASSIGN_OR_RETURN(pin,
                                 pipeline_.Read(static_cast<int>(i), deadline));
      } else if (kind == StateKind::kMaster) {
        return absl::FailedPreconditionError(
            absl::StrCat("parameter '", spec.name,
                         "' has no master before its "
                         "first step"));
      }
      ReadSegment(chunks_[i], segment, kind, pin.data(), out);
    }
  }
  return absl::OkStatus();
}

// An empty payload: of a fresh chunk.
void ChunkedOptimizer::ReadSegment(const Chunk& chunk, const Segment& segment,
                                   StateKind kind,
                                   absl::Span<const std::byte> payload,
                                   absl::Span<float> out) const {
  const auto bytes = static_cast<size_t>(segment.count) * sizeof(float);
  float* target = out.data() + segment.parameter_offset;
  if (payload.empty()) {
    std::memset(target, 0, bytes);
    return;
  }
  const int array = kind == StateKind::kMaster        ? 0
                    : kind == StateKind::kFirstMoment ? chunk.arrays() - 2
                                                      : chunk.arrays() - 1;
  const int64_t element = array * chunk.stride() + segment.chunk_offset;
  std::memcpy(target, payload.data() + element * 4, bytes);
}

}  // namespace

absl::StatusOr<OptimizerPlan> OffloadedOptimizer::Plan(
    absl::Span<const ParameterSpec> parameters, const OptimizerOptions& options,
    int64_t host_budget_bytes) {
  TERRACE_ASSIGN_OR_RETURN(ChunkPlan plan,
                           PlanChunks(parameters, options, host_budget_bytes));
  return plan.plan;
}

absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> OffloadedOptimizer::Create(
    Runtime& runtime, std::vector<ParameterSpec> parameters,
    const OptimizerOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(
      ChunkPlan plan,
      PlanChunks(parameters, options, runtime.GetStats().host_budget_bytes));
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<RequestQueue> queue,
      runtime.OpenQueue(plan.plan.chunk_bytes,
                        static_cast<int>(plan.plan.slots),
                        runtime.clock().Now() + kOpenTimeout));
  std::vector<TensorId> tensors;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(
        TensorId tensor,
        runtime.Register({.name = absl::StrCat(options.name, "/chunk", i),
                          .size_bytes = plan.chunks[i].payload_bytes(),
                          .global_offset = plan.chunks[i].first}));
    tensors.push_back(tensor);
  }
  return std::make_unique<ChunkedOptimizer>(
      runtime, std::move(parameters), options, std::move(plan),
      std::move(queue), std::move(tensors));
}

}  // namespace terrace
