// AdamW and Adam as torch::optim::Optimizers whose state lives behind a
// Runtime's budget, or in the budget of an offloaded model. Each has an
// OffloadedOptimizer that takes a parameter and its .grad where LibTorch has
// them.
//
//   auto optimizer = terrace::OffloadedAdamW::Create(
//       *runtime, model->parameters(), {.max_gradient_norm = 1.0});
//   loss.backward();
//   (*optimizer)->step();
//   (*optimizer)->zero_grad();
//
// Groups are LibTorch's own, with torch::optim::AdamWOptions (AdamOptions) of
// their own, which may change between steps: schedulers work, and so do
// programs written for torch::optim::AdamW. Groups and parameters may be added
// at any time; they get their state at the next step. A parameter without a
// gradient stays as it is. Gradients of several backward passes are taken as
// they are; whether they are clipped by torch::nn::utils::clip_grad_norm_ or in
// the step (max_gradient_norm) is the caller's choice.
//
// An optimizer of an offloaded model joins it, by being made with the model's
// Offload in the Runtime's place. Then
//   - state has the model's memory and paths. A budget in bytes holds the
//     model and all optimizers that join; a budget that is a share grows, by
//     that share of gradients and state. Of the options the optimizer sets
//     window_bytes, and the name unless all of the model is in memory: then the
//     state has a Runtime of its own beside the model;
//   - gradients of the model's parameters go below as backward makes them, as
//     far as the budget has no room, unless all of the model is in memory.
//     .grad is a tensor that any operation reads and writes; its data_ptr()
//     needs a Lease. Gradients that are there already go below too, and those
//     of frozen parameters once they are thawed;
//   - a step takes the parameters chunk by chunk, with 4 to 32 MiB beside the
//     budget, and overlaps unless set_overlap(false) says otherwise;
//   - the Offload's Close finishes the updates, tells which of them failed, or
//     that a step without overlap is incomplete, and ends the state. Every call
//     that has to do with the state is FailedPrecondition from then on, and
//     only the end of the optimizer is left. While Close goes on no other
//     thread uses the optimizer. The optimizer may as well end first: gradients
//     that backward makes after that stay in memory.
// Parameters of no Offload may be among the optimizer's, and none of another
// Offload. An optimizer over a Runtime refuses parameters that are offloaded.
//
// Parameters are leaves in CPU or CUDA memory, fp32, bf16 or fp16 (stepped
// through an fp32 master), each with a dense gradient of its own shape that is
// fp32 or of its own dtype. The next step begins with the elements that a
// program writes into a parameter between steps; every other element of a
// 16-bit parameter keeps its master. Contiguous tensors are used in place. A
// parameter or gradient that is not contiguous is copied for the step. The copy
// of a parameter is for all attempts at the step, and is written back at its
// end. Complex, sparse and other tensors are refused, and so are a tensor that
// is given twice and parameters that overlap in memory.
//
// With set_overlap(true), as where it has joined, a step returns when the
// gradients have been read for their norm. A thread then updates the
// parameters, to the same bits, in the order in which operations took them
// after the step before. The step takes the gradients along, so that
// zero_grad() may follow at once. While updates go on
//   - options of groups are those of the step;
//   - an operation of LibTorch, on any thread, waits for the parameters that it
//     takes, and an operation that writes a gradient waits for the update that
//     reads it; a backward pass waits for all updates with its first function.
//     An operation that waits for an update which has failed throws c10::Error,
//     with a text that begins with "terrace:";
//   - data_ptr(), and code that reads or writes through an address, is no
//     operation: it sees a parameter before its update, after it, or a part of
//     each. Call Flush() first;
//   - every method here that steps or has to do with the state waits for all
//     updates, and so does a fork.
// With overlap parameters have to be in CPU memory.
//
// Thread-compatible: one thread at a time may use it. The Runtime must outlive
// it; an Offload may end before or after it. Errors are Statuses; only methods
// that LibTorch itself calls (step, save, load) throw c10::Error, with the
// Status's text.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "terrace/torch/group_options.h"

namespace terrace {

class GatheredStep;
class InBackwardSteps;
class JoinedOffload;
class KnownParameters;
class LateSteps;
class Offload;
class TensorDevices;
struct StepSource;

// Copies of one parameter's state, in its shape, fp32.
struct ParameterState {
  int64_t step = 0;  // steps with a gradient; 0: the tensors are undefined
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor master;  // of a 16-bit parameter
};

// The methods that OffloadedAdamW and OffloadedAdam have in common.
class OffloadedAdamBase : public ::torch::optim::Optimizer {
 public:
  // Waits for updates. Those that fail are given up: elements that were not
  // updated stay as they were.
  ~OffloadedAdamBase() override;

  // A step that takes longer than this is DeadlineExceeded and incomplete; with
  // overlap the timeout is for its updates.
  void set_step_timeout(absl::Duration timeout) { step_timeout_ = timeout; }

  // Says whether updates go on after a step has returned, from the next step
  // on. At first they do where the optimizer joined an Offload, else not. A
  // step that is incomplete is finished without overlap.
  void set_overlap(bool overlap) { overlap_ = overlap; }

  // From now on the last of `passes` backward passes makes the step: each chunk
  // is updated as soon as its gradients are there, and they are freed, and with
  // an Offload none goes below. step() ends the step; after fewer passes it
  // steps all parameters. The bits are those of one step with all gradients.
  // With 0 the optimizer steps after backward, as at first.
  // - Gradients are gone when the pass returns: clipping or unscaling them by
  //   hand does nothing. A parameter is written at any time from the pass's
  //   first gradient until step() has ended: nothing else may read it then.
  // - Options are those of the groups as the last pass makes its first
  //   gradient. TryStep is FailedPrecondition where the options are others by
  //   then, or where a parameter that was stepped has another gradient by then:
  //   reset it.
  // - A parameter with a gradient that the pass did not give, as one that is
  //   frozen, is stepped by step(), as another step.
  // - Where functions of programs (torch::autograd::Function) run backward
  //   within themselves, a gradient is complete at the end of the outermost
  //   pass. A pass that runs on another thread than the function, or in a hook
  //   of a tensor, is not known for a part of that pass.
  // - Passes are counted from the last step, or from this call: where gradients
  //   are given up after a pass, because of a failure or not, call it again.
  //   One pass more throws c10::Error at its first gradient, which stays:
  //   zero_grad() before step().
  // - Where a pass breaks, or an update fails, after some parameters were
  //   stepped, backward, TryStep, StateOf, save and load are refused from then
  //   on, with the reason: resume from a checkpoint. An optimizer that ends
  //   before step() has ended leaves its parameters stepped in part.
  // - set_overlap is without effect. One thread at a time runs backward.
  // Returns InvalidArgument for a negative number, and for an optimizer that
  // clips or skips. Returns FailedPrecondition when half a step has been made,
  // or when gradients are below: zero_grad() first. Other errors are those of
  // Flush, or with 0 those of Hook::ManageGradient for gradients that are there
  // already, after which the optimizer steps after backward all the same. While
  // backward makes the steps, TryStep is Unimplemented with a loss scale,
  // clipping, skipping or norm_gradients, and a step that backward has begun
  // has failed then.
  absl::Status SetStepInBackward(int passes);

  // Makes one step, as OffloadedOptimizer::Step. `arguments` may say anything
  // but learning rate and groups, which the parameter groups say. Returns
  // InvalidArgument for a parameter or gradient that is not as above, by its
  // position in all groups, and changes nothing. Returns FailedPrecondition
  // when the Offload that the optimizer joined is closed.
  //
  // With overlap the call begins as Flush(), and returns the error of that
  // without a step of its own. Returns Unimplemented, and changes nothing, for
  // a parameter on a device, or an inference tensor, by its position among
  // those of offloaded(), and for gradients for the norm (norm_gradients).
  absl::Status TryStep(const StepArguments& arguments = {});

  // Blocks until all parameters of the last step are updated; without overlap
  // there is nothing to wait for. Returns DeadlineExceeded when the deadline
  // comes first: nothing is lost then, and the updates go on.
  //
  // A failure of an update is returned once by the first call of TryStep,
  // Flush, StateOf, save or, as a c10::Error, step. Flush and TryStep then try
  // again with the gradients of that step, to the same bits, at most until the
  // deadline, and return the error of that; the others return the failure
  // again. DataLoss stays. A load, or a Reset of offloaded(), gives the step
  // up.
  absl::Status Flush(absl::Time deadline = absl::InfiniteFuture());

  // Calls TryStep, after the closure if there is one, whose loss is returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  // Returns InvalidArgument for a tensor that is no parameter of this
  // optimizer, FailedPrecondition when the Offload that the optimizer joined is
  // closed, else as Flush.
  absl::StatusOr<ParameterState> StateOf(const at::Tensor& parameter);

  // The archive is that of torch::optim::AdamW (Adam), with one more tensor for
  // a 16-bit parameter: its master. Either optimizer loads what the other
  // saved. A master that is not there, or has elements that do not round to the
  // parameter's, is there made from the parameter in the next step. The
  // archive, as LibTorch makes it, holds the whole state in memory. An archive
  // that does not fit is refused and changes nothing. A load that fails later
  // leaves the optimizer without its state, and steps and saves are
  // FailedPrecondition until a load succeeds. Both throw where the Offload that
  // the optimizer joined is closed.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // Returns the optimizer behind this one: plan, reports, state. Its parameters
  // are those of the groups, in the order in which they were first seen. Waits
  // for updates; the next call tells of those that failed. From a TryStep with
  // overlap on a reference is not to be used: ask for it again. The method may
  // not be called once backward has begun a step that step() has not ended, nor
  // once the Offload that the optimizer joined is closed.
  OffloadedOptimizer& offloaded();

 protected:
  OffloadedAdamBase(
      AdamMode mode,
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      const OptimizerOptions& options);

  // Checks groups, makes an optimizer with the OffloadedOptimizer behind it,
  // over a Runtime or in an Offload, and takes the parameters.
  template <typename Optimizer, typename Home>
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(
      AdamMode mode, Home& home,
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      const OptimizerOptions& options);

 private:
  friend class OffloadedAdamPeer;  // of the tests

  // Sets how tensors of each device are stepped, from the next step on; null
  // stands for in place. By default those in CPU memory are stepped in place,
  // and those of CUDA through pinned memory.
  void set_devices(std::function<std::unique_ptr<Device>(c10::Device)> choose);
  absl::Status Open(Runtime& runtime, OptimizerOptions options);
  absl::Status Open(Offload& offload, OptimizerOptions options);
  absl::Status CheckOpen() const;
  // Also checks that no step has begun in backward, or failed there.
  absl::Status CheckBetweenSteps(absl::string_view what) const;
  absl::Status EndWithOffload();
  absl::Status AdoptParameters();
  StepSource Source();
  absl::Status StepNow(const StepArguments& arguments);
  absl::Status StepLate(const StepArguments& arguments);
  absl::Status FollowBackward(int passes);
  absl::Status StepInBackward(const StepArguments& arguments);
  void TidyUp();
  ParameterState ReadParameterState(int index, StateReader& reader) const;
  template <typename State, typename Options>
  void SaveAs(::torch::serialize::OutputArchive& archive) const;
  template <typename State, typename Options>
  void LoadAs(::torch::serialize::InputArchive& archive);
  Time Deadline() const { return absl::Now() + step_timeout_; }

  const AdamMode mode_;
  const bool bias_correction_;
  const bool clips_;  // or skips
  const std::unique_ptr<KnownParameters> known_;
  const std::unique_ptr<GatheredStep> gathered_;  // for one step
  // The last of these is in use; slots may still refer to those before.
  std::vector<std::unique_ptr<TensorDevices>> devices_;
  std::unique_ptr<JoinedOffload> joined_;          // null: over a Runtime
  std::unique_ptr<OffloadedOptimizer> offloaded_;  // null: closed
  std::unique_ptr<LateSteps> late_;  // of offloaded_, and ends before it
  std::unique_ptr<InBackwardSteps> in_backward_;  // likewise; null: none
  bool overlap_ = false;
  absl::Duration step_timeout_ = absl::Hours(1);
  absl::Status step_failure_;  // of the last step without overlap
};

class OffloadedAdamW final : public OffloadedAdamBase {
 public:
  // `options.adam` are the defaults of groups without options; its mode is
  // not looked at. Returns InvalidArgument for a parameter that is not as
  // above, by its position, and ResourceExhausted for a budget below the
  // minimum, which the message names.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Runtime& runtime, std::vector<::torch::optim::OptimizerParamGroup> groups,
      const OptimizerOptions& options);
  // Makes an optimizer of one group.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Runtime& runtime, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

  // Makes the same in an offloaded model, which the optimizer joins. Returns
  // ResourceExhausted also for a budget in bytes below the minimum with this
  // optimizer, which the message names. Returns InvalidArgument also when there
  // are no parameters, when some are another Offload's, which the message
  // names, or when the budget does not hold all and has nothing below. Returns
  // FailedPrecondition when the Offload is closed, and Cancelled in a forked
  // child. Other errors are those of Hook::ManageGradient for a gradient that
  // is there already.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Offload& offload, std::vector<::torch::optim::OptimizerParamGroup> groups,
      const OptimizerOptions& options);
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Offload& offload, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

 private:
  friend class OffloadedAdamBase;
  using OffloadedAdamBase::OffloadedAdamBase;
};

// Adam with L2: the decay is part of the gradient. LibTorch's default is no
// decay; here it is what `options.adam` says.
class OffloadedAdam final : public OffloadedAdamBase {
 public:
  static absl::StatusOr<std::unique_ptr<OffloadedAdam>> Create(
      Runtime& runtime, std::vector<::torch::optim::OptimizerParamGroup> groups,
      const OptimizerOptions& options);
  static absl::StatusOr<std::unique_ptr<OffloadedAdam>> Create(
      Runtime& runtime, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

  static absl::StatusOr<std::unique_ptr<OffloadedAdam>> Create(
      Offload& offload, std::vector<::torch::optim::OptimizerParamGroup> groups,
      const OptimizerOptions& options);
  static absl::StatusOr<std::unique_ptr<OffloadedAdam>> Create(
      Offload& offload, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

 private:
  friend class OffloadedAdamBase;
  using OffloadedAdamBase::OffloadedAdamBase;
};

}  // namespace terrace
