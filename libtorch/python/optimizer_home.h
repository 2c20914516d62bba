// What one optimizer of the Python package is made of: an OffloadedOptimizer,
// the runtime of its state, and what a step of it has under way. Its bindings
// share it: OptimizerBinding opens and closes it, StepBinding steps it,
// StateBinding reads and writes its state, CheckpointBinding saves and loads
// it.
//
// Thread-safe by Locked, which runs one call at a time; all else is for what
// runs within it. A forked child's calls are refused there, and its copy is
// dropped without touching the files, the threads or the locks that are its
// parent's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/offload/state_runtime.h"
#include "libtorch/python/binding_options.h"
#include "libtorch/python/outcome.h"
#include "libtorch/python/state_transfer.h"
#include "libtorch/step/gathered/gathered_step.h"
#include "libtorch/step/late/late_steps.h"
#include "terrace/gradual_step.h"
#include "terrace/optimizer.h"

namespace terrace {

class OptimizerHome {
 public:
  OptimizerHome() = default;
  ~OptimizerHome();
  OptimizerHome(const OptimizerHome&) = delete;
  OptimizerHome& operator=(const OptimizerHome&) = delete;

  // FailedPrecondition: this process is a forked child of the optimizer's.
  absl::Status CheckProcess() const;
  // What `work` answers, a Status or a text, while no other call runs. A
  // forked child is refused, and does not run it.
  template <typename Work>
  Outcome Locked(const Work& work) {
    if (absl::Status status = CheckProcess(); !status.ok()) {
      return ToOutcome(status);
    }
    MutexLock lock(mutex_);
    return ToOutcome(work());
  }

  // Closes what was open before.
  absl::Status Open(std::vector<ParameterSpec> specs,
                    const BindingOptions& options,
                    std::shared_ptr<OffloadPlace> place);
  absl::Status Extend(const std::vector<ParameterSpec>& specs);
  absl::Status Close();

  // Whether the optimizer is open; its state is neither read nor written from
  // here on.
  absl::Status CheckOpen();
  // The same, though a state transfer goes on.
  absl::Status CheckNotClosed();

  // Waits for a late step. kTell: answers with its failure; kTryAgain: with one
  // that was told before once it has failed again.
  enum class Late : uint8_t { kQuietly, kTell, kTryAgain };
  absl::Status SettleLate(Late how);
  // What failed of a late step is given up: whether anything has.
  bool GiveUpLate();
  // What a step of these parameters is gathered from.
  StepSource Source(absl::Span<const at::Tensor> parameters);
  // No step goes on: what it had of tensors is let go of.
  void EndStep();
  // The last step's seconds and bytes join those of the steps before.
  void CountStep();

  const BindingOptions& options() const { return options_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  StateRuntime& runtime() { return *runtime_; }
  OffloadedOptimizer* optimizer() { return optimizer_.get(); }  // null: closed
  GatheredStep& gathered() { return gathered_; }
  std::unique_ptr<GradualStep>& gradual() { return gradual_; }
  LateSteps* late() { return late_.get(); }  // null: closed
  StateTransfer& transfer() { return transfer_; }
  const StepReport& total() const { return total_; }

 private:
  const Process process_;
  Mutex mutex_;
  BindingOptions options_;
  std::vector<ParameterSpec> specs_;
  std::unique_ptr<StateRuntime> runtime_;
  TensorDevices devices_;
  OffloadedDevice offloaded_;
  GatheredStep gathered_;  // with these devices, in use by:
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  std::unique_ptr<GradualStep> gradual_;
  std::unique_ptr<LateSteps> late_;  // of optimizer_
  StateTransfer transfer_;           // likewise
  StepReport total_;                 // sums over all steps
};

}  // namespace terrace
