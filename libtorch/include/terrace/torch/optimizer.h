// AdamW and Adam as torch::optim::Optimizers whose state lives behind a
// Runtime's budget, or in that of an offloaded model: an OffloadedOptimizer
// that takes each parameter and its .grad where LibTorch has them.
//
//   auto optimizer = terrace::OffloadedAdamW::Create(
//       *runtime, model->parameters(), {.max_gradient_norm = 1.0});
//   loss.backward();
//   (*optimizer)->step();
//   (*optimizer)->zero_grad();
//
// Groups are LibTorch's own, with torch::optim::AdamWOptions (AdamOptions) of
// their own, which may change between steps: schedulers work, and programs
// written for torch::optim::AdamW. Groups and parameters may be added at any
// time; they get their state at the next step. One without a gradient stays as
// it is. Gradients of several backward passes are taken as they are; whether
// they are clipped by torch::nn::utils::clip_grad_norm_ or in the step
// (max_gradient_norm) is the caller's choice.
//
// Where the model is offloaded the optimizer joins it, by being made with its
// Offload in the Runtime's place; then
//   - state has the model's memory and paths. A budget in bytes is for all of
//     it, and for all optimizers that join; one that is a share grows, by that
//     share of gradients and state. Of the options window_bytes is set here,
//     and the name, unless all of the model is in memory: then it has a Runtime
//     of its own beside it;
//   - gradients of the model's parameters go below as backward makes them, as
//     far as the budget has no room, unless all of the model is in memory.
//     .grad is a tensor that any operation reads and writes; its data_ptr()
//     needs a Lease. Those that are there already go below too, and those of
//     frozen parameters once they are thawed;
//   - a step takes the parameters chunk by chunk, with 4 to 32 MiB beside the
//     budget, and overlaps unless set_overlap(false) says otherwise;
//   - the Offload's Close finishes the updates, tells what failed of them, or
//     that a step without overlap is incomplete, and ends the state: whatever
//     has to do with it is FailedPrecondition from then on, and only the end of
//     the optimizer is left. While Close goes on no other thread uses it. It
//     may as well end first: gradients that backward makes after that stay in
//     memory.
// Parameters of no Offload may be among them, and none of another one. An
// optimizer over a Runtime refuses what is offloaded.
//
// Parameters are leaves in CPU or CUDA memory, fp32, bf16 or fp16 (stepped
// through an fp32 master), each with a dense gradient of its own shape that is
// fp32 or of its own dtype. What a program writes into one between steps is
// what the next begins with; of a 16-bit one every other element keeps its
// master. What is contiguous is used in place; a parameter or gradient that is
// not is copied for the step, once for all attempts at it, and the parameter
// written back at its end.
// Complex, sparse and other tensors are refused, a tensor that is given twice,
// and parameters that overlap in memory.
//
// With set_overlap(true), as where it has joined, a step returns when the
// gradients have been read for their norm, and a thread updates the parameters,
// in the order in which operations took them after the step before; to the same
// bits. It takes the gradients along, so that zero_grad() may follow at once.
// While updates go on
//   - options of groups are those of the step;
//   - an operation of LibTorch, on any thread, waits for the parameters that it
//     takes, and one that writes a gradient for the update that reads it; a
//     backward pass waits for all with its first function. One whose update
//     has failed throws c10::Error, with a text that begins with "terrace:";
//     before LibTorch 2.12 views of that parameter that were made before go on
//     throwing after it is mended;
//   - data_ptr(), and whatever reads or writes through an address, is no
//     operation: it sees a parameter before its update, after it, or a part of
//     each. Call Flush() first;
//   - everything here that steps or has to do with the state waits for all, and
//     so does a fork.
// Parameters have to be in CPU memory.
//
// Thread-compatible: one thread at a time. The Runtime must outlive it; an
// Offload may end before or after it. Errors are Statuses; only what LibTorch
// itself calls (step, save, load) throws c10::Error, with the Status's text.
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
  int64_t step = 0;  // in which it had a gradient; 0: tensors are undefined
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor master;  // of a 16-bit parameter
};

// What both have in common.
class OffloadedAdamBase : public ::torch::optim::Optimizer {
 public:
  // Waits for updates. What fails of them is given up: elements that were not
  // updated stay as they were.
  ~OffloadedAdamBase() override;

  // How long a step may take before it is DeadlineExceeded and incomplete; with
  // overlap, its updates.
  void set_step_timeout(absl::Duration timeout) { step_timeout_ = timeout; }

  // Whether updates go on after a step has returned, from the next step on: so
  // it is at first where it joined an Offload, else not. One that is incomplete
  // is finished without.
  void set_overlap(bool overlap) { overlap_ = overlap; }

  // From now on the last of so many backward passes makes the step: each chunk
  // is updated as soon as its gradients are there, and they are freed, and with
  // an Offload none goes below. step() ends it; after fewer passes it steps
  // all. The bits are those of one step with all gradients. 0: as at first.
  // - Gradients are gone when the pass returns: clipping or unscaling them by
  //   hand does nothing. A parameter is written at any time from the pass's
  //   first gradient until step() has ended: nothing else may read it then.
  // - Options are those of the groups as the last pass makes its first
  //   gradient; TryStep is FailedPrecondition where they are others then, or
  //   where what was stepped has another gradient by then: reset it.
  // - What has a gradient that the pass did not give, as one that is frozen, is
  //   stepped by step(), as another step.
  // - Where functions of programs (torch::autograd::Function) run backward
  //   within themselves, a gradient is complete at the end of the outermost
  //   pass. What runs on another thread than the function, and a hook of a
  //   tensor that runs backward, is not known for that.
  // - Passes are counted from the last step, or from this call: where gradients
  //   are given up after a pass, because of a failure or not, call it again.
  //   One pass more throws c10::Error at its first gradient, which stays:
  //   zero_grad() before step().
  // - Where a pass breaks, or an update fails, after some parameters were
  //   stepped, backward, TryStep, StateOf, save and load are refused from then
  //   on, with why: resume from a checkpoint. An optimizer that ends before
  //   step() has leaves its parameters stepped in part.
  // - set_overlap is without effect. One thread at a time runs backward.
  // InvalidArgument: a negative number; an optimizer that clips or skips.
  // FailedPrecondition: half a step has been made, or gradients are below:
  // zero_grad() first. Else as Flush, or with 0 as Hook::ManageGradient of
  // those that are there; it steps after backward then. Unimplemented, of
  // TryStep, and the step has failed if backward has begun it: a loss scale,
  // clipping, skipping or norm_gradients.
  absl::Status SetStepInBackward(int passes);

  // One step; as OffloadedOptimizer::Step. `arguments` may say anything but
  // learning rate and groups, which the parameter groups say. InvalidArgument:
  // a parameter or gradient that is not as above, by its position in all
  // groups; nothing was changed then. FailedPrecondition: the Offload that it
  // joined is closed.
  //
  // With overlap it begins as Flush(), with what that returns, and has begun
  // nothing of its own then. Unimplemented, and nothing was changed: a
  // parameter on a device, or an inference tensor, by its position among those
  // of offloaded(); gradients for the norm (norm_gradients).
  absl::Status TryStep(const StepArguments& arguments = {});

  // Blocks until all parameters of the last step are updated; without overlap
  // there is nothing to wait for. DeadlineExceeded: the deadline came first;
  // nothing is lost, and the updates go on.
  //
  // A failure of an update is returned once by whatever comes first of TryStep,
  // Flush, StateOf, save and, as a c10::Error, step. Flush and TryStep then try
  // again with the gradients of that step, to the same bits, at most until the
  // deadline, and return what fails of that; the others return the failure
  // again. DataLoss stays. A load, or a Reset of offloaded(), gives the step
  // up.
  absl::Status Flush(absl::Time deadline = absl::InfiniteFuture());

  // TryStep, after the closure if there is one, whose loss is returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  // InvalidArgument: not a parameter of this optimizer. FailedPrecondition: the
  // Offload that it joined is closed. Else as Flush says.
  absl::StatusOr<ParameterState> StateOf(const at::Tensor& parameter);

  // The archive of torch::optim::AdamW (Adam), with one more tensor for a
  // 16-bit parameter: its master. Either loads what the other saved; a master
  // that is not there, or has elements that do not round to the parameter's, is
  // there made from the parameter in the next step. The archive, as LibTorch
  // makes it, holds the whole state in memory. What does not fit is refused and
  // changes nothing; a load that fails later leaves the optimizer without its
  // state, and steps and saves are FailedPrecondition until one succeeds. Both
  // throw where the Offload that it joined is closed.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // The optimizer behind it: plan, reports, state. Not once backward has begun
  // a step that step() has not ended. Its parameters are those of
  // the groups, in the order in which they were first seen. Waits for updates;
  // what failed of them is told by the next call. From a TryStep with overlap
  // on a reference is not to be used: ask for it again. Not once the Offload
  // that it joined is closed.
  OffloadedOptimizer& offloaded();

 protected:
  OffloadedAdamBase(
      AdamMode mode,
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      const OptimizerOptions& options);

  // Checks groups, makes one with what is behind it, over a Runtime or in an
  // Offload, and takes the parameters.
  template <typename Optimizer, typename Home>
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(
      AdamMode mode, Home& home,
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      const OptimizerOptions& options);

 private:
  friend class OffloadedAdamPeer;  // of the tests

  // How tensors of each device are stepped, from the next step on; null: in
  // place. The default: CPU memory in place, CUDA through pinned memory.
  void set_devices(std::function<std::unique_ptr<Device>(c10::Device)> choose);
  absl::Status Open(Runtime& runtime, OptimizerOptions options);
  absl::Status Open(Offload& offload, OptimizerOptions options);
  absl::Status CheckOpen() const;
  // And that no step has begun in backward, or failed there.
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
  // The last one is in use, those before may be known to slots still.
  std::vector<std::unique_ptr<TensorDevices>> devices_;
  std::unique_ptr<JoinedOffload> joined_;          // null: over a Runtime
  std::unique_ptr<OffloadedOptimizer> offloaded_;  // null: it is closed
  std::unique_ptr<LateSteps> late_;  // of offloaded_, and ends before it
  std::unique_ptr<InBackwardSteps> in_backward_;  // likewise; null: none
  bool overlap_ = false;
  absl::Duration step_timeout_ = absl::Hours(1);
  absl::Status step_failure_;  // of the last one without overlap
};

class OffloadedAdamW final : public OffloadedAdamBase {
 public:
  // `options.adam` are the defaults of groups without options; its mode is
  // not looked at. InvalidArgument: a parameter that is not as above, by its
  // position; ResourceExhausted: a budget below the minimum, which is named.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Runtime& runtime, std::vector<::torch::optim::OptimizerParamGroup> groups,
      const OptimizerOptions& options);
  // One group.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Runtime& runtime, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

  // The same in an offloaded model, which it joins. ResourceExhausted also: of
  // a budget in bytes, one below the minimum with this optimizer, which is
  // named. InvalidArgument also: no parameters, some of another Offload's
  // (named), or a budget that does not hold all and has nothing below.
  // FailedPrecondition: the Offload is closed.
  // Cancelled: in a forked child. Else what Hook::ManageGradient says of a
  // gradient that is there already.
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

// Adam with L2: the decay is part of the gradient. LibTorch's default of it is
// none; here it is what `options.adam` says.
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
