// The OffloadedOptimizer over its parts, each with a header of its own:
//
//   OptimizerState  parameters, chunks and counts     state/, chunks/
//   StateGuard      when it may be used               state/
//   StateStore      reads and writes outside of steps state/
//   ChunkRequests   requests for chunks               chunks/
//   RunningStep     the step                          step/
//
// Here: in which order they are asked, and what a window and tensors need of
// the Runtime.
//
// Thread-compatible, as its interface. The Runtime must outlive it, but in a
// forked child, where it is a shell that refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "optimizer/chunks/chunk_requests.h"
#include "optimizer/state/optimizer_state.h"
#include "optimizer/state/state_guard.h"
#include "optimizer/state/state_store.h"
#include "optimizer/step/running_step.h"
#include "terrace/optimizer.h"

namespace terrace {

class ChunkedOptimizer final : public OffloadedOptimizer {
 public:
  // Without parameters; AddParameters checks the options.
  ChunkedOptimizer(Runtime& runtime, const OptimizerOptions& options);
  ~ChunkedOptimizer() override;

  absl::Status Step(const StepArguments& arguments,
                    absl::Span<const ParameterData> parameters,
                    Time deadline) override;
  absl::Status Start(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters) override {
    return StartUntil(absl::InfiniteFuture(), arguments, parameters);
  }
  bool Advance() override;
  absl::StatusOr<std::unique_ptr<LateStep>> StartLate(
      const StepArguments& arguments,
      absl::Span<const ParameterData> parameters, absl::Span<const int> order,
      Time deadline) override;
  absl::StatusOr<std::unique_ptr<GradualStep>> StartGradual(
      const StepArguments& arguments,
      absl::Span<const ParameterData> parameters,
      absl::Span<const int> order) override;
  absl::Status result() const override { return running_->result(); }

  int64_t step() const override { return state_->counts.step(); }
  bool incomplete() const override { return running_->incomplete(); }
  const OptimizerPlan& plan() const override { return state_->plan; }
  const StepReport& last_report() const override { return running_->report(); }
  absl::Span<const ParameterSpec> parameters() const override {
    return state_->specs;
  }
  absl::Span<const int64_t> parameter_steps() const override {
    return state_->counts.by_parameter();
  }

  absl::Status AddParameters(std::vector<ParameterSpec> parameters) override;
  bool HasState(int parameter, StateKind kind) const override {
    return store_.HasState(parameter, kind);
  }
  absl::StatusOr<std::unique_ptr<StateReader>> OpenStateReader() override;
  absl::StatusOr<std::unique_ptr<StateWriter>> OpenStateWriter(
      Time deadline) override;
  absl::Status WriteState(int parameter, StateKind kind, int64_t offset,
                          absl::Span<const float> values,
                          Time deadline) override;
  absl::Status ForgetState(int parameter) override;
  absl::Status SetSteps(int64_t step,
                        absl::Span<const int64_t> parameter_steps) override;
  absl::Status Reset(Time deadline) override;

 private:
  // From here on deadlines are by the runtime's clock, not the wall's.
  absl::Status StartUntil(absl::Time deadline, const StepArguments& arguments,
                          absl::Span<const ParameterData> parameters);
  absl::Status CheckStepFree() const;
  // No step is running, or has requests under way; none is incomplete.
  absl::Status CheckQuiet(absl::string_view what) const;
  absl::Status CheckComplete(absl::string_view what) const;
  absl::StatusOr<int64_t> Budget() const;
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const Chunk> chunks);
  absl::Status OpenQueue(const OptimizerPlan& plan, absl::Time deadline);

  Runtime& runtime_;
  Clock& clock_;
  const OptimizerOptions options_;
  StateGuard guard_;
  // Leaked in a forked child, where they may be locked or half changed.
  std::unique_ptr<OptimizerState> state_;
  std::unique_ptr<ChunkRequests> requests_;
  std::unique_ptr<RunningStep> running_;
  StateStore store_;
};

}  // namespace terrace
