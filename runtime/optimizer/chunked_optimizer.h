// The OffloadedOptimizer: a step as a state machine over a ChunkPipeline
// (chunked_optimizer.cc), and the state outside of steps (chunked_state.cc;
// state_reader.cc and state_writer.cc, who reads and who writes it).
//
// Thread-compatible, as its interface. The Runtime must outlive it, but in a
// forked child, where it is a shell that refuses.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/optimizer/chunks/chunk_layout.h"
#include "runtime/optimizer/chunks/held_chunks.h"
#include "runtime/optimizer/step/apart_check.h"
#include "runtime/optimizer/step/chunk_pipeline.h"
#include "runtime/optimizer/step/gradient_pass.h"
#include "runtime/optimizer/step/staging.h"
#include "runtime/optimizer/step/step_check.h"
#include "runtime/optimizer/step/step_meter.h"
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
    return Start(arguments, parameters, absl::InfiniteFuture());
  }
  bool Advance() override;
  absl::Status result() const override { return result_; }

  int64_t step() const override { return step_; }
  bool incomplete() const override { return incomplete_; }
  const OptimizerPlan& plan() const override { return plan_; }
  const StepReport& last_report() const override { return report_; }
  absl::Span<const ParameterSpec> parameters() const override { return specs_; }
  absl::Span<const int64_t> parameter_steps() const override {
    return parameter_steps_;
  }

  absl::Status AddParameters(std::vector<ParameterSpec> parameters) override;
  bool HasState(int parameter, StateKind kind) const override;
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
  enum class Phase : uint8_t {
    kIdle,
    kNorm,         // summing the gradients, nothing changed yet
    kRecognise,    // are these the gradients of the incomplete step?
    kUpdate,       // chunks are under way
    kFingerprint,  // failed: keeping what the next attempt must bring again
  };

  class Reader;
  class Writer;

  // What tasks on the executor touch. In a forked child it may be locked or
  // half changed for ever, so that its copy is leaked, and the queue with it.
  struct Tasks {
    Tasks(const std::vector<Chunk>& chunks, Runtime& runtime)
        : meter(runtime.clock()),
          pipeline(chunks, runtime.clock(), runtime.executor(), meter) {}

    StepMeter meter;
    Staging staging;
    ChunkPipeline pipeline;
    std::unique_ptr<GradientPass> pass;
  };

  // Where a range of a parameter meets one chunk.
  struct Piece {
    int chunk;
    size_t segment;        // in the chunk
    int64_t chunk_offset;  // elements
    int64_t range_offset;  // from the start of the range
    int64_t count;
  };

  absl::Status Start(const StepArguments& arguments,
                     absl::Span<const ParameterData> parameters,
                     absl::Time deadline);
  absl::Status CheckMasters() const;
  absl::Status PrepareStaging(const StepArguments& arguments,
                              absl::Span<const ParameterData> parameters);
  void MakeScalars();
  std::vector<GradientData> OwnGradients() const;
  void Launch(Phase phase, GradientPass::Kind kind,
              absl::Span<const GradientData> gradients);
  void EndNorm();
  void EndRecognise();
  void Attempt();
  void EndUpdate();
  void EndFingerprint();
  void CountStep();
  void Finish(absl::Status result);

  bool IsOwnProcess() const { return getpid() == process_; }
  // OK where it can be used at all: it is this process's and not poisoned.
  absl::Status CheckUsable() const;
  absl::StatusOr<int64_t> Budget() const;
  // And nobody reads or writes the state.
  absl::Status CheckFree(absl::string_view what) const;
  absl::Status CheckQuiet(absl::string_view what) const;
  absl::Status CheckComplete(absl::string_view what) const;
  // That no load ended before its Commit.
  absl::Status CheckLoaded(absl::string_view what) const;
  absl::Status CheckRange(int parameter, StateKind kind, int64_t offset,
                          size_t count) const;
  absl::Status OpenQueue(const OptimizerPlan& plan, absl::Time deadline);
  std::vector<Piece> Pieces(int parameter, int64_t offset, size_t count) const;
  absl::Status WriteRange(HeldChunks& held, int parameter, int64_t offset,
                          const StateValues& values, absl::Time deadline);
  absl::Status WritePiece(HeldChunks& held, const Piece& piece,
                          const StateValues& values, absl::Time deadline);
  absl::Status AssignSteps(int64_t step,
                           absl::Span<const int64_t> parameter_steps);

  const pid_t process_ = getpid();
  Runtime& runtime_;
  const OptimizerOptions options_;
  Executor& executor_;

  std::vector<ParameterSpec> specs_;
  OptimizerPlan plan_;
  std::vector<Chunk> chunks_;
  std::vector<int> first_chunks_;        // by parameter; of an empty one: any
  std::unique_ptr<RequestQueue> queue_;  // null: no chunks
  std::unique_ptr<Tasks> tasks_;         // with these in it:
  StepMeter& meter_;
  Staging& staging_;
  ChunkPipeline& pipeline_;
  std::unique_ptr<GradientPass>& pass_;
  bool reading_ = false;      // a Reader is there
  bool writing_ = false;      // or a Writer that is not committed
  bool half_loaded_ = false;  // a Writer began, and none committed since

  // Of the step that is running or incomplete.
  Phase phase_ = Phase::kIdle;
  bool incomplete_ = false;
  StepSettings settings_;
  std::vector<ParameterData> parameters_;
  ApartCheck apart_;
  std::vector<AdamScalars> scalars_;  // by parameter
  UpdateStep update_;
  double gradient_norm_ = 0;
  uint64_t fingerprint_ = 0;  // of the incomplete step's gradients
  bool has_fingerprint_ = false;
  absl::Time deadline_;

  int64_t step_ = 0;                      // completed
  std::vector<int64_t> parameter_steps_;  // completed, with a gradient
  std::vector<int64_t> masters_written_;  // by a load: elements from 0 on
  absl::Status poison_;
  absl::Status result_;
  StepReport report_;
};

}  // namespace terrace
