// Adam and AdamW whose state lives behind a Runtime's budget.
//
// The state of all parameters, laid end to end, is cut in chunks of at most
// 8 MiB, each one tensor of the Runtime: for fp32 parameters the two moments
// (8 bytes a parameter), for 16-bit ones an fp32 master and the two moments
// (12 bytes). A step pushes every chunk, updates each in one fused pass on
// the executor as it arrives and releases it; the runtime writes it back.
// Parameters and gradients stay the caller's, are read and written in place.
//
//   auto optimizer = OffloadedOptimizer::Create(*runtime, specs, options);
//   (*optimizer)->Step({.learning_rate = 1e-3}, parameters, deadline);
//
// Parameters belong to groups, and each step may say the options of every
// group. As in PyTorch, a parameter without a gradient in a step stays as it
// is, and its bias correction follows its own counter of steps. The master of
// a 16-bit parameter is made from it in the first step with a gradient; from
// then on the parameter is the master's cast. Where an element has other bits
// than that, the caller has written it between steps (an older copy, an
// average, a clamp): it is then what the step begins with, its moments stay,
// and every other element keeps its master (MasterReference, terrace/adam.h).
//
// Thread-compatible: one thread at a time. The Runtime must outlive it. In a
// child of fork() whatever returns a Status, of it or of a StateReader or
// StateWriter, is Cancelled at once, an Advance ends in that, and all are
// destroyed without an effect; see terrace/runtime.h.
//
// Algorithm: Kingma and Ba 2015 (arXiv 1412.6980) section 2; decoupled decay:
// Loshchilov and Hutter 2019 (arXiv 1711.05101) algorithm 2. Pipeline: read
// ahead, update, write behind, as in ZeRO-Infinity (arXiv 2104.07857) section
// 5.2.2, without its barriers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/adam.h"
#include "terrace/gradual_step.h"
#include "terrace/runtime.h"
#include "terrace/tensor.h"

namespace terrace {

class Device;  // private interface of the library, as in terrace/runtime.h

struct ParameterSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  int64_t count = 0;  // elements, >= 0
  int group = 0;      // index into StepArguments::groups
  // Steps will pass it as a device's: a plan counts the slots for it.
  bool on_device = false;
};

// One parameter in one step. `gradient` null: none in this step, the
// parameter and its state stay as they are. The gradient of a parameter
// without elements is any aligned address that is not null. Parameters with a
// gradient that overlap in memory are InvalidArgument: all are written at once.
//
// With a `device` both addresses are that device's. What was queued there when
// the step began is waited for; the step is done when the device's memory has
// the new parameters. Pinned slots beside the budget (StepReport) carry the
// bytes: parameters and gradients to the CPU, parameters back. A device must
// outlive the optimizer.
struct ParameterData {
  void* parameter = nullptr;       // count elements of the spec's dtype
  const void* gradient = nullptr;  // count elements
  DType gradient_dtype = DType::kFloat32;
  Device* device = nullptr;  // null: CPU memory
};

// A gradient of which a step needs no more than its part in the norm.
struct GradientData {
  const void* values = nullptr;  // null: none in this step
  DType dtype = DType::kFloat32;
  int64_t count = 0;         // elements
  Device* device = nullptr;  // null: CPU memory
};

struct OptimizerOptions {
  std::string name = "optimizer";  // prefix of its tensors' names
  AdamOptions adam;                // of every group, where a step has no other
  double max_gradient_norm = 0;    // global L2; 0: no clipping
  bool skip_nonfinite = false;     // inf or NaN: skip the step, change nothing
  int64_t chunk_bytes = 8 << 20;   // at most; less where the budget is small
  int64_t window_bytes = 0;        // at most; 0: chosen, <= half the budget
};

// Read during the call that takes it only.
struct StepArguments {
  std::optional<double> learning_rate;  // of every group; else the group's
  double loss_scale = 1;                // gradients are divided by it
  // One for each group, or empty: OptimizerOptions::adam for all.
  absl::Span<const AdamOptions> groups = {};
  // Else those of the OptimizerOptions.
  std::optional<double> max_gradient_norm;
  std::optional<bool> skip_nonfinite;
  // For the optimizer of a share of a model's parameters: the gradients of all
  // of them, in the model's order, so that it clips and skips as the optimizer
  // of all would, bit for bit. Else the norm is that of its own. A negative
  // count, an unknown dtype or an address not aligned to it: InvalidArgument.
  std::optional<absl::Span<const GradientData>> norm_gradients = {};
};

// Seconds of the last step, on the calling thread's wall clock; each is the
// sum of its own clock reads and compute + blocked is the step.
struct StepReport {
  int64_t step = 0;
  // Global, of the unscaled gradients before clipping. 0 when the step did not
  // need it: no clipping, no skipping and a loss scale of 1.
  double gradient_norm = 0;
  bool skipped = false;  // non-finite and skip_nonfinite
  double total_seconds = 0;
  double compute_seconds = 0;        // kernels ran, or copied over the bus
  double blocked_read_seconds = 0;   // none ran: waiting for reads
  double blocked_write_seconds = 0;  // none ran: waiting for write-backs
  double blocked_space_seconds = 0;  // none ran: waiting for other customers
  double other_seconds = 0;          // pushing, accounting
  // Pinned memory that parameters on devices pass through, and what did.
  int64_t staging_bytes = 0;
  int64_t bytes_from_devices = 0;
  int64_t bytes_to_devices = 0;
};

// What Create would reserve.
struct OptimizerPlan {
  int64_t parameters = 0;
  int64_t state_bytes = 0;  // without headers and padding
  int64_t disk_bytes = 0;   // with them, over all paths
  int64_t chunk_bytes = 0;  // payload of the largest chunk
  int64_t chunks = 0;
  int64_t slots = 0;
  int64_t window_bytes = 0;
  int64_t minimum_budget_bytes = 0;
  // Pinned memory beside the Runtime's budget that parameters on devices pass
  // through, with gradients of their own dtype; the report says what is taken.
  int64_t staging_bytes = 0;
};

// Where elements of a parameter's state are copied to, by kind. Those that are
// not empty are of one length; empty: that kind is not wanted.
struct StateSpans {
  absl::Span<float> master;
  absl::Span<float> first_moment;
  absl::Span<float> second_moment;
};

// Reads state range after range. The last chunk of each dtype stays in memory,
// so that a caller that takes the parameters by index and each one's ranges in
// order, all kinds at a time, reads every chunk once. Thread-compatible.
class StateReader {
 public:
  virtual ~StateReader() = default;

  // Elements from `offset` on. Zeros before the parameter's first step (a
  // master: FailedPrecondition). After an error the spans hold anything.
  virtual absl::Status Read(int parameter, int64_t offset,
                            const StateSpans& out, Time deadline) = 0;
};

// Elements of a parameter's state to be copied from, as StateSpans.
struct StateValues {
  absl::Span<const float> master;
  absl::Span<const float> first_moment;
  absl::Span<const float> second_moment;
};

// A load: replaces all state, range after range. From when it is made until its
// Commit the optimizer has no state that a step, a save or a read could use:
// they are FailedPrecondition, also once it is gone, until the next load has
// ended well or Reset has forgotten what there is. Chunks stay in memory as
// with a StateReader: a caller that takes the parameters in that order has
// every chunk written once, and none read. Thread-compatible.
class StateWriter {
 public:
  virtual ~StateWriter() = default;

  // Elements from `offset` on, in ranges of any size. A master is written from
  // its start on without gaps, and whole or not at all: it is then made from
  // the parameter, as is each element that the next step finds a parameter of
  // other bits at. Moments that are not written are zero. After an error, write
  // the range again.
  virtual absl::Status Write(int parameter, int64_t offset,
                             const StateValues& values, Time deadline) = 0;

  // The end of the load, with the counters as step() and parameter_steps()
  // return them, up to kMostSteps; nothing more is written. After an error it
  // is not the end.
  virtual absl::Status Commit(int64_t step,
                              absl::Span<const int64_t> parameter_steps) = 0;
};

// What a counter of steps may be set to, and where it stays when it gets there:
// a double has every count up to it.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

class OffloadedOptimizer {
 public:
  // ResourceExhausted: a budget below the minimum, which the message names.
  static absl::StatusOr<OptimizerPlan> Plan(
      absl::Span<const ParameterSpec> parameters,
      const OptimizerOptions& options, int64_t host_budget_bytes);

  static absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> Create(
      Runtime& runtime, std::vector<ParameterSpec> parameters,
      const OptimizerOptions& options);

  // Its tensors are forgotten: their room and their names are free again.
  virtual ~OffloadedOptimizer() = default;

  // One step over all parameters. OK only if every chunk was updated exactly
  // once. After an error the step is *incomplete*: call Step again with the
  // same gradients and arguments to finish the missing chunks (bit for bit
  // the undisturbed step); anything else is FailedPrecondition. A parameter
  // written in between counts in that call where its chunk is missing, else in
  // the next step; one on a device that could not be given its new values gets
  // them in that call, whatever was written. DataLoss is sticky: the optimizer
  // is poisoned and says so from then on. A copy from or to a device that fails
  // leaves the step incomplete; it is DataLoss where a device has failed for
  // good with parameters that are not back.
  // After the first failed attempt of a step the gradients are read once more,
  // so that the next can be told from another step; where that fails too the
  // optimizer is of no more use, and says so. Later attempts read them once.
  // The deadline is for disk; a device that does not answer is waited for.
  virtual absl::Status Step(const StepArguments& arguments,
                            absl::Span<const ParameterData> parameters,
                            Time deadline) = 0;

  // The same as a state machine that never blocks: Start, then Advance until
  // it returns true (the step is done; result() is its Status). Advance
  // returns false when it can go no further at present.
  virtual absl::Status Start(const StepArguments& arguments,
                             absl::Span<const ParameterData> parameters) = 0;
  virtual bool Advance() = 0;
  virtual absl::Status result() const = 0;

  // A step that goes on after this call; see LateStep. `order`: parameters, as
  // they will be used; the others come after them. InvalidArgument: one that is
  // not there; else as Step, whose incomplete steps it goes on with too. The
  // deadline is for what is done here.
  virtual absl::StatusOr<std::unique_ptr<LateStep>> StartLate(
      const StepArguments& arguments,
      absl::Span<const ParameterData> parameters, absl::Span<const int> order,
      Time deadline) = 0;

  // A step that begins before its gradients are there; see GradualStep.
  // `parameters` are those that may come, with the gradient null; of others the
  // parameter is null too. `order`: all of them, as their gradients are
  // expected; it decides what is read ahead and nothing else. InvalidArgument:
  // a parameter or an order that cannot be, and what needs all gradients first:
  // clipping, skipping, a loss scale, gradients for the norm.
  virtual absl::StatusOr<std::unique_ptr<GradualStep>> StartGradual(
      const StepArguments& arguments,
      absl::Span<const ParameterData> parameters,
      absl::Span<const int> order) = 0;

  // Steps completed; and whether one is incomplete.
  virtual int64_t step() const = 0;
  virtual bool incomplete() const = 0;

  virtual const OptimizerPlan& plan() const = 0;
  virtual const StepReport& last_report() const = 0;

  // What Create and AddParameters were given; and for each the completed steps
  // in which it had a gradient.
  virtual absl::Span<const ParameterSpec> parameters() const = 0;
  virtual absl::Span<const int64_t> parameter_steps() const = 0;

  // The methods below are FailedPrecondition while a step is running or has
  // requests under way, and those that change something also while one is
  // incomplete; Reset always ends what is incomplete.

  // Appends chunks for more parameters, which take the next indices. An error
  // leaves the optimizer as it was. ResourceExhausted: a budget or a path with
  // no room for them.
  virtual absl::Status AddParameters(std::vector<ParameterSpec> parameters) = 0;

  enum class StateKind : uint8_t { kMaster, kFirstMoment, kSecondMoment };
  // Whether all of a parameter's state of that kind is there; without it
  // moments read as zeros, and a master cannot be read. State is as the last
  // step left it, also a master whose parameter was written since.
  virtual bool HasState(int parameter, StateKind kind) const = 0;

  // One at a time. While it is there, whatever changes the optimizer is
  // FailedPrecondition; it must go before the optimizer does.
  virtual absl::StatusOr<std::unique_ptr<StateReader>> OpenStateReader() = 0;

  // Copies out.size() elements from `offset` on of one parameter's state, by
  // a StateReader of its own.
  absl::Status ReadState(int parameter, StateKind kind, int64_t offset,
                         absl::Span<float> out, Time deadline);
  // All of it: `out` as long as the parameter.
  absl::Status ReadState(int parameter, StateKind kind, absl::Span<float> out,
                         Time deadline);

  // Begins a load: forgets everything, as Reset, with its errors. One at a
  // time, and not beside a StateReader. While it is there and not committed,
  // whatever reads or changes the optimizer is FailedPrecondition; it must go
  // before the optimizer does.
  virtual absl::StatusOr<std::unique_ptr<StateWriter>> OpenStateWriter(
      Time deadline) = 0;

  // Writes elements of one kind, as StateWriter::Write, over the state that
  // there is. A master that is not whole before the next step is
  // FailedPrecondition there. Each call takes its chunks into memory and gives
  // them back: for more than a few, StateWriter.
  virtual absl::Status WriteState(int parameter, StateKind kind, int64_t offset,
                                  absl::Span<const float> values,
                                  Time deadline) = 0;

  // Forgets one parameter's state and counter: its next step is its first. The
  // others stay as they are.
  virtual absl::Status ForgetState(int parameter) = 0;

  // The counters, as step() and parameter_steps() return them, to kMostSteps.
  virtual absl::Status SetSteps(int64_t step,
                                absl::Span<const int64_t> parameter_steps) = 0;

  // Forgets all state, counters and an incomplete step: as after Create. Not a
  // DataLoss: that needs another optimizer. Where others hold the room for its
  // window at the deadline it waits for up to a minute more: without one it is
  // of no more use.
  virtual absl::Status Reset(Time deadline) = 0;
};

}  // namespace terrace
