// One optimizer of the Python package: an OffloadedOptimizer and the place of
// its state behind a class that TORCH_LIBRARY can hand to Python.
//
// Nothing here throws: a method that can fail returns an Outcome, from which
// the package makes an exception of the right Python type. LibTorch calls the
// methods without Python's lock held.
//
// Thread-safe: one call runs at a time, others wait. A forked child's calls
// fail and its copy is dropped without touching the files, the threads or the
// locks that are its parent's.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/offload/state_runtime.h"
#include "libtorch/python/binding_options.h"
#include "libtorch/python/mapped_file.h"
#include "libtorch/python/offload_binding.h"
#include "libtorch/python/outcome.h"
#include "libtorch/python/state_transfer.h"
#include "libtorch/python/tensors.h"
#include "libtorch/step/late/late_steps.h"
#include "libtorch/tensors_apart.h"
#include "terrace/checkpoint.h"
#include "terrace/optimizer.h"
#include "terrace/stats.h"

namespace terrace {

class OptimizerBinding final : public ::torch::CustomClassHolder {
 public:
  OptimizerBinding() = default;
  ~OptimizerBinding() override;

  // Whether this process can use it at all; a forked child cannot.
  Outcome Check();

  // Reserves memory and disk for the state of these parameters, which take the
  // places from 0 on; `options` is as for ReadBindingOptions. Ends what was
  // open before. With an offloaded model it joins that: its state is of the
  // model's Runtime and budget.
  Outcome Open(const std::vector<at::Tensor>& parameters,
               const std::vector<std::string>& names,
               const std::string& options,
               const std::optional<c10::intrusive_ptr<OffloadBinding>>& model);
  // More of them, which take the next places.
  Outcome Add(const std::vector<at::Tensor>& parameters,
              const std::vector<std::string>& names);

  // Whether all parameters, of a share those of all ranks too, are apart in
  // memory; the open optimizer has no say in it. Those of a step are looked at
  // there as well. Without names they are called by their positions.
  Outcome CheckApart(const std::vector<at::Tensor>& parameters,
                     const std::vector<std::string>& names);

  // One step with the parameters' own gradients. `group_of` has the group of
  // each as int64, -1 of one that is not stepped; `numbers` are those of
  // AdamOfEach. Where these parameters
  // are a share, `everything` has those of all ranks, whose norm counts; else
  // nothing.
  Outcome Step(const std::vector<at::Tensor>& parameters,
               const at::Tensor& group_of, const std::vector<double>& numbers,
               double loss_scale, const std::vector<at::Tensor>& everything);

  // As Step, but the updates go on after it has returned, by a thread of their
  // own, in the order in which operations took the parameters after the last
  // such step. Until they have ended every other method waits for them. One
  // that failed is the answer of the next that uses or changes the state, Close
  // too; from then on of each but StepLate and Flush, which try it again first,
  // and a Load that fits, Reset and Write, which give it up. Flush waits, and
  // nothing else.
  Outcome StepLate(const std::vector<at::Tensor>& parameters,
                   const at::Tensor& group_of,
                   const std::vector<double>& numbers, double loss_scale);
  Outcome Flush();
  // Waits, and answers with what failed, each time; a forked child has nothing.
  Outcome Settle();
  // Waits, of any optimizer, as what writes the tensor would.
  static Outcome AwaitUpdates(const at::Tensor& tensor);

  // A step whose gradients come one after another, as terrace/gradual_step.h:
  // of the parameters that are in a group. `order` has their places as the
  // gradients are expected. Supply takes the gradient of one out of its .grad
  // and frees it when it was used; EndSupply says that no more come; Finish
  // blocks until the step is done, and GiveUp ends it as failed. Between Begin
  // and Finish whatever else uses the state is FailedPrecondition, and after
  // an error of Supply, EndSupply or Finish for good.
  Outcome BeginGradual(const std::vector<at::Tensor>& parameters,
                       const at::Tensor& group_of,
                       const std::vector<double>& numbers,
                       const std::vector<int64_t>& order);
  Outcome Supply(int64_t place, const at::Tensor& parameter);
  Outcome EndSupply();
  Outcome FinishGradual();
  Outcome GiveUpGradual(const std::string& why);

  // Whether the last step was skipped: a gradient was not finite.
  bool Skipped();
  // Whether the last step failed half-way and is to be repeated.
  bool Incomplete();

  // All the state of several parameters, given with their indices: of each in
  // turn its step, the master if it is a 16-bit one, and both moments, as new
  // fp32 tensors in CPU memory, the step a scalar, the others of its shape. A
  // master that is not there is made from the parameter, as the next step
  // will. With a file, which was opened for these parameters among others, all
  // but the steps are mapped from it.
  std::tuple<Outcome, std::vector<at::Tensor>> CopyStates(
      const std::vector<int64_t>& indices,
      const std::vector<at::Tensor>& parameters,
      const std::optional<c10::intrusive_ptr<MappedFileBinding>>& file);

  // A parameter's state from element `offset` on, into contiguous fp32 tensors
  // of one size; an empty one is not wanted. What was read last stays in
  // memory until EndReading or any other use.
  Outcome Read(int64_t parameter, int64_t offset, const at::Tensor& master,
               const at::Tensor& first_moment, const at::Tensor& second_moment);
  void EndReading();
  // The same the other way round; an empty master is made in the next step, and
  // elements of one that do not round to those of the parameter. The
  // first one begins a load, which forgets all state, and SetSteps ends it; any
  // other use before leaves the optimizer half loaded (see StateWriter), and
  // both refuse to go on until Reset, Open or Load.
  Outcome Write(int64_t parameter, int64_t offset, const at::Tensor& master,
                const at::Tensor& first_moment,
                const at::Tensor& second_moment);
  // Over the whole state of one parameter that there is, without a load; of
  // kinds that are empty nothing changes. Forget: of these parameters.
  Outcome Edit(int64_t parameter, const at::Tensor& master,
               const at::Tensor& first_moment, const at::Tensor& second_moment);
  Outcome Forget(const std::vector<int64_t>& parameters);
  std::vector<int64_t> Steps();
  Outcome SetSteps(int64_t step, const std::vector<int64_t>& steps);
  Outcome Reset();

  // A checkpoint of these tensors, the optimizer's state where it is open, and
  // `rest`, bytes of the caller's. `positions` has each tensor's among the
  // optimizer's parameters, or -1. On success the message is the bytes written.
  Outcome Save(const std::string& directory,
               const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions, const at::Tensor& rest);
  // The same in parts, of ranks that share the state; see CheckpointCommit.
  // Position -2: another rank's. On success the message of WritePart is the
  // part, that of CommitSave the bytes written. With `parameters` the tensors
  // are written too. EndSave gives up what was not committed; again: nothing.
  Outcome BeginSave(const std::string& directory, const at::Tensor& rest);
  Outcome WritePart(const std::string& directory,
                    const std::vector<at::Tensor>& tensors,
                    const std::vector<std::string>& names,
                    const std::vector<int64_t>& positions, bool parameters);
  Outcome CommitSave(const std::vector<std::string>& parts);
  void EndSave();
  // Opens a checkpoint; an Outcome and the `rest`, by which, and by Fits, a
  // caller sees whether the whole fits before anything changes. Load fills the
  // tensors and the optimizer from the checkpoint that was opened, also if
  // another one has taken its place since. EndLoad closes it; again: nothing.
  std::tuple<Outcome, at::Tensor> BeginLoad(const std::string& directory);
  Outcome Fits(const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions);
  Outcome Load(const std::vector<at::Tensor>& tensors,
               const std::vector<std::string>& names,
               const std::vector<int64_t>& positions);
  void EndLoad();

  // Of these stats, `updates_waited_seconds` alone.
  std::tuple<Outcome, double> WaitedSeconds();
  // A JSON object; see StatsAsJson. Of one that was never open, all are 0.
  std::tuple<Outcome, std::string> Stats();
  Outcome Close();

 private:
  absl::Status CheckProcess() const;
  // Whether the optimizer is open; it is neither read nor written from here on.
  absl::Status CheckOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same, though a state transfer goes on.
  absl::Status CheckNotClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OpenLocked(std::vector<ParameterSpec> specs,
                          const BindingOptions& options,
                          std::shared_ptr<OffloadPlace> place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StepLocked(const std::vector<at::Tensor>& parameters,
                          const at::Tensor& group_of,
                          const std::vector<double>& numbers, double loss_scale,
                          const std::vector<at::Tensor>& everything)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StepLateLocked(const std::vector<at::Tensor>& parameters,
                              const at::Tensor& group_of,
                              const std::vector<double>& numbers,
                              double loss_scale)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a late step. kTell: answers with its failure; kTryAgain: with one
  // that was told before once it has failed again.
  enum class Late : uint8_t { kQuietly, kTell, kTryAgain };
  absl::Status SettleLate(Late how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What failed of it is given up: whether anything has.
  bool DropLate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginGradualLocked(const std::vector<at::Tensor>& parameters,
                                  const at::Tensor& group_of,
                                  const std::vector<double>& numbers,
                                  const std::vector<int64_t>& order)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SupplyLocked(int64_t place, const at::Tensor& parameter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishGradualLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the gradients that were used. `status` is of the step.
  absl::Status AfterSupply(absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CopyStateLocked(int64_t index, const at::Tensor& parameter,
                               StateReader& reader, MappedFile* file,
                               const at::Tensor& buffer,
                               std::vector<at::Tensor>& copies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginLoadLocked(const std::string& directory, at::Tensor& rest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FitsLocked(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::string>& names,
                          const std::vector<int64_t>& positions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LoadLocked(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::string>& names,
                          const std::vector<int64_t>& positions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  BindingOptions options_ ABSL_GUARDED_BY(mutex_);
  std::vector<ParameterSpec> specs_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StateRuntime> runtime_ ABSL_GUARDED_BY(mutex_);
  StepTensors tensors_ ABSL_GUARDED_BY(mutex_);  // its devices are in use by:
  NormTensors norm_tensors_ ABSL_GUARDED_BY(mutex_);
  TensorsApart apart_ ABSL_GUARDED_BY(mutex_);  // of CheckApart
  std::unique_ptr<OffloadedOptimizer> optimizer_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GradualStep> gradual_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LateSteps> late_ ABSL_GUARDED_BY(mutex_);  // of optimizer_
  StateTransfer transfer_ ABSL_GUARDED_BY(mutex_);           // likewise
  std::unique_ptr<CheckpointCommit> commit_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpoint> checkpoint_ ABSL_GUARDED_BY(mutex_);
  StepReport total_ ABSL_GUARDED_BY(mutex_);  // sums over all steps
};

// A step's seconds and bytes, added to those of the steps before.
void Accumulate(const StepReport& report, StepReport& total);

// What Python's optimizer.stats() returns, as it comes: a counter that is added
// there is in it. `last` is of the last step, `total` sums over all of them;
// `waited` for updates that went on after them.
std::string StatsAsJson(const terrace::Stats& stats, const OptimizerPlan& plan,
                        int64_t steps, const StepReport& last,
                        const StepReport& total, absl::Duration waited);

}  // namespace terrace
