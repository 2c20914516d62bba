// The step that is running or incomplete: a state machine over the passes over
// all gradients and the ChunkPipeline.
//
//   idle --Start--> norm ------> update --> idle
//        \--------> recognise -/       \--> fingerprint --> idle, incomplete
//
//   idle --StartGradual--> update --> idle
//                              \--> idle, poisoned
//
// Its tasks touch meter, staging, pipeline and pass: in a forked child, where
// they may be locked or half changed for ever, it is leaked.
//
// One thread at a time. State, guard, requests and runtime must outlive it.
// Deadlines are by the runtime's clock, not the wall's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "optimizer/chunks/chunk_requests.h"
#include "optimizer/state/optimizer_state.h"
#include "optimizer/state/state_guard.h"
#include "optimizer/step/apart_check.h"
#include "optimizer/step/chunk_pipeline.h"
#include "optimizer/step/gradient_pass.h"
#include "optimizer/step/staging.h"
#include "optimizer/step/step_input.h"
#include "optimizer/step/step_meter.h"
#include "terrace/optimizer.h"

namespace terrace {

class RunningStep {
 public:
  RunningStep(OptimizerState& state, StateGuard& guard, ChunkRequests& requests,
              const OptimizerOptions& options, Runtime& runtime);
  RunningStep(const RunningStep&) = delete;
  RunningStep& operator=(const RunningStep&) = delete;

  // As OffloadedOptimizer's. What the guard forbids is the caller's to ask.
  absl::Status Start(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters,
                     absl::Time deadline);
  // As OffloadedOptimizer's: blocks until updates have begun or the step has
  // ended. TakeStepped and Hasten are for it.
  absl::Status StartLate(const StepArguments& arguments,
                         absl::Span<const ParameterData> parameters,
                         absl::Span<const int> order, absl::Time deadline);
  void Hasten(int parameter) { pipeline_.Hasten(parameter); }
  // Of a step that comes as a GradualStep says; then Supply, EndSupply and
  // Advance, and GiveUp, which blocks until no task of it runs.
  absl::Status StartGradual(const StepArguments& arguments,
                            absl::Span<const ParameterData> parameters,
                            absl::Span<const int> order);
  absl::Status Supply(int parameter, const void* gradient, DType dtype);
  void EndSupply() { pipeline_.EndSupply(); }
  void TakeStepped(std::vector<int>* parameters) {
    pipeline_.TakeStepped(parameters);
  }
  void GiveUp(absl::Status why);

  bool Advance();
  // Blocks until Advance can go further. False: the deadline passed.
  bool Wait(absl::Time deadline);
  // This process cannot run it; its result says so.
  void Refuse(absl::Status why) { result_ = std::move(why); }
  // It has run into its deadline: what is missing stays so.
  void OnDeadline();
  // Until no task of it runs and no copy is under way.
  void WaitForTasks();

  bool is_running() const { return phase_ != Phase::kIdle; }
  // Some of its chunks are missing; the next must be an attempt at them.
  bool incomplete() const { return incomplete_; }
  const absl::Status& result() const { return result_; }
  const StepReport& report() const { return report_; }

  // The requests have a new queue; none is running.
  void SetSlots(int slots) { pipeline_.SetSlots(slots); }
  // No step is incomplete. Nothing may be pushed.
  void Clear();

 private:
  enum class Phase : uint8_t {
    kIdle,
    kNorm,         // summing the gradients, nothing changed yet
    kRecognise,    // are these the gradients of the incomplete step?
    kUpdate,       // chunks are under way
    kFingerprint,  // failed: keeping what the next attempt must bring again
  };

  absl::Status Begin(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters,
                     absl::Time deadline);
  // A step whose input has passed every check; `stepped`: that of `parameters`
  // which has, or may get, a gradient.
  absl::Status Open(const StepArguments& arguments, StepSettings settings,
                    absl::Span<const ParameterData> stepped,
                    absl::Span<const ParameterData> parameters);
  absl::StatusOr<Staging*> PrepareStaging(
      const StepArguments& arguments,
      absl::Span<const ParameterData> parameters);
  void Launch(Phase phase, GradientPass::Kind kind,
              absl::Span<const GradientData> gradients);
  void EndNorm();
  void EndRecognise();
  void Attempt();
  void EndUpdate();
  void EndFingerprint();
  void Finish(absl::Status result);

  OptimizerState& state_;
  StateGuard& guard_;
  ChunkRequests& requests_;
  const OptimizerOptions& options_;
  Executor& executor_;
  StepMeter meter_;
  Staging staging_;
  ChunkPipeline pipeline_;
  std::unique_ptr<GradientPass> pass_;

  Phase phase_ = Phase::kIdle;
  bool incomplete_ = false;
  bool gradual_ = false;
  std::optional<std::vector<int>> order_;  // chunks of a late step
  ApartCheck apart_;
  StepInput input_;
  // Of the incomplete step's gradients.
  std::optional<uint64_t> fingerprint_;
  absl::Time deadline_;
  absl::Status result_;
  StepReport report_;
};

}  // namespace terrace
