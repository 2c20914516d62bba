#include "optimizer/chunked_optimizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/floating_point.h"
#include "base/status_macros.h"
#include "optimizer/state/state_array.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// How long AddParameters waits for others to make room, and any call that could
// not have a new window for the old one.
constexpr absl::Duration kOpenTimeout = absl::Seconds(60);

// A step that StartGradual began, over the RunningStep. One thread at a time;
// the optimizer outlives it. In a forked child it refuses, and its end has no
// effect.
class SuppliedStep final : public GradualStep {
 public:
  SuppliedStep(RunningStep& running, StateGuard& guard, Clock& clock)
      : running_(running), guard_(guard), clock_(clock) {}
  ~SuppliedStep() override { GiveUp("it was not finished"); }
  SuppliedStep(const SuppliedStep&) = delete;
  SuppliedStep& operator=(const SuppliedStep&) = delete;

  absl::Status Supply(int parameter, const void* gradient,
                      DType dtype) override;
  absl::Status EndSupply() override;
  absl::Status Advance() override;
  void TakeStepped(std::vector<int>* parameters) override {
    if (guard_.IsOwnProcess()) running_.TakeStepped(parameters);
  }
  absl::Status Finish(absl::Time deadline) override;
  void GiveUp(absl::string_view why) override;

 private:
  RunningStep& running_;
  StateGuard& guard_;
  Clock& clock_;
  bool supply_ended_ = false;
  bool done_ = false;
  absl::Status result_;  // once it is done
};

absl::Status SuppliedStep::Supply(int parameter, const void* gradient,
                                  DType dtype) {
  TERRACE_RETURN_IF_ERROR(Advance());
  if (done_ || supply_ended_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", parameter, ": the step takes no more gradients"));
  }
  TERRACE_RETURN_IF_ERROR(running_.Supply(parameter, gradient, dtype));
  return Advance();
}

absl::Status SuppliedStep::EndSupply() {
  TERRACE_RETURN_IF_ERROR(Advance());
  if (!done_ && !supply_ended_) running_.EndSupply();
  supply_ended_ = true;
  return Advance();
}

absl::Status SuppliedStep::Advance() {
  if (!guard_.IsOwnProcess()) return guard_.CheckUsable();
  const DefaultFloatingPoint mode;
  if (!done_ && running_.Advance()) {
    done_ = true;
    result_ = running_.result();
  }
  return done_ ? result_ : absl::OkStatus();
}

absl::Status SuppliedStep::Finish(absl::Time deadline) {
  const absl::Time end = clock_.FromWall(deadline);
  TERRACE_RETURN_IF_ERROR(EndSupply());
  while (!done_) {
    if (!running_.Wait(end)) running_.OnDeadline();
    TERRACE_RETURN_IF_ERROR(Advance());
  }
  return result_;
}

void SuppliedStep::GiveUp(absl::string_view why) {
  if (done_ || !guard_.IsOwnProcess()) return;
  running_.GiveUp(absl::CancelledError(why));
  Advance().IgnoreError();
}

// A step that StartLate began, over the RunningStep. One thread at a time; the
// optimizer outlives it. In a forked child it has ended, refused.
class OrderedStep final : public LateStep {
 public:
  // The deadline is by `clock`.
  OrderedStep(RunningStep& running, ChunkRequests& requests, StateGuard& guard,
              Clock& clock, absl::Time deadline)
      : running_(running),
        requests_(requests),
        guard_(guard),
        clock_(clock),
        deadline_(deadline) {}
  OrderedStep(const OrderedStep&) = delete;
  OrderedStep& operator=(const OrderedStep&) = delete;

  bool Advance() override;
  void Wait(absl::Time until) override;
  void Wake() override {
    if (guard_.IsOwnProcess()) requests_.Wake();
  }
  absl::Status result() const override;
  void TakeStepped(std::vector<int>* parameters) override {
    if (guard_.IsOwnProcess()) running_.TakeStepped(parameters);
  }
  void Hasten(int parameter) override {
    if (guard_.IsOwnProcess()) running_.Hasten(parameter);
  }

 private:
  RunningStep& running_;
  ChunkRequests& requests_;
  StateGuard& guard_;
  Clock& clock_;
  const absl::Time deadline_;
};

bool OrderedStep::Advance() {
  if (!guard_.IsOwnProcess()) return true;
  const DefaultFloatingPoint mode;
  return running_.Advance();
}

void OrderedStep::Wait(absl::Time until) {
  if (!guard_.IsOwnProcess() || !running_.is_running()) return;
  const DefaultFloatingPoint mode;
  if (running_.Wait(std::min(clock_.FromWall(until), deadline_))) return;
  if (clock_.Now() >= deadline_) running_.OnDeadline();
}

absl::Status OrderedStep::result() const {
  if (!guard_.IsOwnProcess()) return guard_.CheckUsable();
  return running_.result();
}

}  // namespace

ChunkedOptimizer::ChunkedOptimizer(Runtime& runtime,
                                   const OptimizerOptions& options)
    : runtime_(runtime),
      clock_(ClockOf(runtime)),
      options_(options),
      guard_(options.name),
      state_(std::make_unique<OptimizerState>()),
      requests_(std::make_unique<ChunkRequests>(clock_)),
      running_(std::make_unique<RunningStep>(*state_, guard_, *requests_,
                                             options_, runtime)),
      store_(*state_, *requests_, clock_) {}

// The names are free again, and the room. What may be refused is that of a
// runtime that is closed, where nothing is left to give back.
ChunkedOptimizer::~ChunkedOptimizer() {
  if (!guard_.IsOwnProcess()) {
    static_cast<void>(running_.release());
    static_cast<void>(requests_.release());
    static_cast<void>(state_.release());
    return;
  }
  running_->WaitForTasks();
  requests_->CloseQueue();
  for (int i = 0; i < state_->chunks.size(); ++i) {
    runtime_.Unregister(state_->chunks.tensor(i)).IgnoreError();
  }
}

absl::Status ChunkedOptimizer::Step(const StepArguments& arguments,
                                    absl::Span<const ParameterData> parameters,
                                    Time deadline) {
  const absl::Time end = clock_.FromWall(deadline);
  TERRACE_RETURN_IF_ERROR(StartUntil(end, arguments, parameters));
  while (!Advance()) {
    if (!running_->Wait(end)) running_->OnDeadline();
  }
  return running_->result();
}

absl::Status ChunkedOptimizer::StartUntil(
    absl::Time deadline, const StepArguments& arguments,
    absl::Span<const ParameterData> parameters) {
  const DefaultFloatingPoint mode;
  TERRACE_RETURN_IF_ERROR(CheckStepFree());
  return running_->Start(arguments, parameters, deadline);
}

absl::StatusOr<std::unique_ptr<LateStep>> ChunkedOptimizer::StartLate(
    const StepArguments& arguments, absl::Span<const ParameterData> parameters,
    absl::Span<const int> order, Time deadline) {
  const DefaultFloatingPoint mode;
  TERRACE_RETURN_IF_ERROR(CheckStepFree());
  const absl::Time end = clock_.FromWall(deadline);
  TERRACE_RETURN_IF_ERROR(
      running_->StartLate(arguments, parameters, order, end));
  return std::make_unique<OrderedStep>(*running_, *requests_, guard_, clock_,
                                       end);
}

absl::StatusOr<std::unique_ptr<GradualStep>> ChunkedOptimizer::StartGradual(
    const StepArguments& arguments, absl::Span<const ParameterData> parameters,
    absl::Span<const int> order) {
  const DefaultFloatingPoint mode;
  TERRACE_RETURN_IF_ERROR(CheckStepFree());
  TERRACE_RETURN_IF_ERROR(running_->StartGradual(arguments, parameters, order));
  auto step = std::make_unique<SuppliedStep>(*running_, guard_, clock_);
  TERRACE_RETURN_IF_ERROR(step->Advance());
  return step;
}

absl::Status ChunkedOptimizer::CheckStepFree() const {
  TERRACE_RETURN_IF_ERROR(guard_.CheckFree("no step"));
  if (running_->is_running()) {
    return absl::FailedPreconditionError("a step is running");
  }
  return guard_.CheckLoaded("no step can be made");
}

bool ChunkedOptimizer::Advance() {
  if (!guard_.IsOwnProcess()) {
    running_->Refuse(guard_.CheckUsable());
    return true;
  }
  const DefaultFloatingPoint mode;
  return running_->Advance();
}

absl::Status ChunkedOptimizer::CheckQuiet(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(guard_.CheckFree(what));
  if (!running_->is_running() && requests_->pushed() == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " while a step is running or has requests under way"));
}

absl::Status ChunkedOptimizer::CheckComplete(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckQuiet(what));
  if (!incomplete()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " while step ", step() + 1, " is incomplete"));
}

// Only a forked child's runtime has none, and that refuses everything.
absl::StatusOr<int64_t> ChunkedOptimizer::Budget() const {
  const int64_t bytes = runtime_.GetStats().host.budget_bytes;
  if (bytes == 0) {
    const absl::Status refusal = runtime_.Unregister(TensorId());
    if (absl::IsCancelled(refusal)) return refusal;
  }
  return bytes;
}

absl::Status ChunkedOptimizer::AddParameters(
    std::vector<ParameterSpec> parameters) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("parameters cannot be added"));
  std::vector<ParameterSpec> specs = state_->specs;
  for (ParameterSpec& spec : parameters) specs.push_back(std::move(spec));
  TERRACE_ASSIGN_OR_RETURN(const int64_t budget_bytes, Budget());
  TERRACE_ASSIGN_OR_RETURN(
      ChunkPlan added,
      PlanChunks(specs, options_, budget_bytes, state_->chunks.chunks(),
                 state_->specs.size()));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorId> tensors,
                           Register(added.chunks));
  // Their room goes back when the addition fails, and their names are free.
  // Nothing knows them, so only a closed runtime can refuse it.
  absl::Cleanup forget = [this, &tensors] {
    for (TensorId id : tensors) runtime_.Unregister(id).IgnoreError();
  };
  if (added.plan.slots != state_->plan.slots ||
      added.plan.chunk_bytes != state_->plan.chunk_bytes) {
    const absl::Time deadline = clock_.Now() + kOpenTimeout;
    TERRACE_RETURN_IF_ERROR(OpenQueue(added.plan, deadline));
  }
  std::move(forget).Cancel();
  state_->chunks.Append(std::move(added.chunks), tensors, specs.size());
  state_->counts.Resize(specs.size());
  state_->specs = std::move(specs);
  state_->plan = added.plan;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorId>> ChunkedOptimizer::Register(
    absl::Span<const Chunk> chunks) {
  std::vector<TensorSpec> specs;
  for (const Chunk& chunk : chunks) {
    const size_t index =
        static_cast<size_t>(state_->chunks.size()) + specs.size();
    specs.push_back({.name = absl::StrCat(options_.name, "/chunk", index),
                     .size_bytes = chunk.payload_bytes(),
                     .global_offset = chunk.first});
  }
  return runtime_.Register(specs);
}

// Replaces the queue. On an error the window is as it was before; if not even
// that can be had again, the optimizer is of no more use and says why.
absl::Status ChunkedOptimizer::OpenQueue(const OptimizerPlan& plan,
                                         absl::Time deadline) {
  const auto open = [this](const OptimizerPlan& wanted, absl::Time until) {
    requests_->CloseQueue();
    auto queue =
        runtime_.OpenQueue(wanted.chunk_bytes, static_cast<int>(wanted.slots),
                           clock_.ToWall(until));
    if (!queue.ok()) return queue.status();
    requests_->SetQueue(*std::move(queue));
    running_->SetSlots(static_cast<int>(wanted.slots));
    return absl::OkStatus();
  };
  const absl::Status status = open(plan, deadline);
  if (!status.ok() && state_->plan.slots > 0) {
    // The first may have waited until its deadline.
    guard_.Poison(open(state_->plan, clock_.Now() + kOpenTimeout));
  }
  return status;
}

absl::Status ChunkedOptimizer::Reset(Time deadline) {
  TERRACE_RETURN_IF_ERROR(guard_.CheckFree("an optimizer cannot be reset"));
  if (running_->is_running()) {
    return absl::FailedPreconditionError(
        "an optimizer cannot be reset while a step is running");
  }
  // A new queue: requests that an incomplete step left behind end with the
  // old.
  if (requests_->pushed() > 0) {
    TERRACE_RETURN_IF_ERROR(OpenQueue(state_->plan, clock_.FromWall(deadline)));
  }
  if (running_->incomplete()) {
    // What a tier refused of it is tried again, as a step does: else the next
    // request hears of it once more, as of a queue that cannot do this.
    requests_->BeginStep(state_->counts.step() + 1).IgnoreError();
    requests_->AbortStep().IgnoreError();
  }
  running_->Clear();
  state_->chunks.Clear();
  state_->counts.Clear();
  guard_.ForgetLoad();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateReader>>
ChunkedOptimizer::OpenStateReader() {
  TERRACE_RETURN_IF_ERROR(CheckQuiet("state cannot be read"));
  TERRACE_RETURN_IF_ERROR(guard_.CheckLoaded("state cannot be read"));
  return MakeStateReader(store_, guard_);
}

absl::StatusOr<std::unique_ptr<StateWriter>> ChunkedOptimizer::OpenStateWriter(
    Time deadline) {
  TERRACE_RETURN_IF_ERROR(Reset(deadline));
  return MakeStateWriter(store_, guard_);
}

absl::Status ChunkedOptimizer::WriteState(int parameter, StateKind kind,
                                          int64_t offset,
                                          absl::Span<const float> values,
                                          Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("state cannot be written"));
  TERRACE_RETURN_IF_ERROR(guard_.CheckLoaded("state cannot be written"));
  StateValues given;
  SpanOf(given, kind) = values;
  TERRACE_RETURN_IF_ERROR(
      store_.CheckRange(parameter, kind, offset, values.size()));
  HeldChunks held = store_.Hold();
  return store_.Write(held, parameter, offset, given,
                      clock_.FromWall(deadline));
}

absl::Status ChunkedOptimizer::ForgetState(int parameter) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("state cannot be forgotten"));
  TERRACE_RETURN_IF_ERROR(guard_.CheckLoaded("state cannot be forgotten"));
  TERRACE_RETURN_IF_ERROR(
      store_.CheckRange(parameter, StateKind::kFirstMoment, 0, 0));
  store_.Forget(parameter);
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::SetSteps(
    int64_t step, absl::Span<const int64_t> parameter_steps) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("steps cannot be set"));
  TERRACE_RETURN_IF_ERROR(guard_.CheckLoaded("steps cannot be set"));
  return state_->counts.Assign(state_->specs, step, parameter_steps);
}

}  // namespace terrace
