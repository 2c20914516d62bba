// AdamW or Adam as a torch::optim::Optimizer whose state lives behind a
// Runtime's budget: an OffloadedOptimizer that takes each parameter and its
// .grad where LibTorch has them, without a copy.
//
//   auto optimizer = terrace::OffloadedAdamW::Create(
//       *runtime, model->parameters(), {.max_gradient_norm = 1.0});
//   loss.backward();
//   (*optimizer)->step();
//   (*optimizer)->zero_grad();
//
// One parameter group: dense, contiguous leaves in CPU memory, fp32, bf16 or
// fp16 (stepped through an fp32 master), each with a gradient of its own shape
// that is fp32 or of its own dtype, or with none, in which case it stays as it
// is. Gradients that were accumulated over several backward passes are taken
// as they are. The learning rate is the group's at the time of the step, so
// LibTorch's schedulers work; the other numbers are fixed at creation.
//
// Thread-compatible: one thread at a time. The Runtime must outlive it. Errors
// are Statuses; only what LibTorch itself calls (step, save, load) throws
// c10::Error, with the Status's text.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"

namespace terrace {

// What a scheduler may change.
struct OffloadedAdamWOptions
    : public ::torch::optim::OptimizerCloneableOptions<OffloadedAdamWOptions> {
  explicit OffloadedAdamWOptions(double rate = 1e-3) : learning_rate(rate) {}
  double get_lr() const override { return learning_rate; }
  void set_lr(double rate) override { learning_rate = rate; }
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;

  double learning_rate;
};

class OffloadedAdamW final : public ::torch::optim::Optimizer {
 public:
  // InvalidArgument: a parameter that is not as above, by its position;
  // ResourceExhausted: a budget below the minimum, which is named.
  static absl::StatusOr<std::unique_ptr<OffloadedAdamW>> Create(
      Runtime& runtime, std::vector<at::Tensor> parameters,
      const OptimizerOptions& options);

  // How long a step may take before it is DeadlineExceeded and incomplete.
  void set_step_timeout(absl::Duration timeout) { step_timeout_ = timeout; }

  // One step; as OffloadedOptimizer::Step. InvalidArgument: a gradient that is
  // not as above, by its position; nothing was changed then.
  absl::Status TryStep();

  // TryStep, after the closure if there is one, whose loss is returned.
  at::Tensor step(LossClosure closure = nullptr) override;

  // The state is in the Runtime's chunks, not here: both throw.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

  // The optimizer behind it: plan, reports, state.
  OffloadedOptimizer& offloaded() { return *offloaded_; }

 private:
  OffloadedAdamW(std::vector<at::Tensor> parameters, double learning_rate,
                 std::unique_ptr<OffloadedOptimizer> offloaded);

  std::unique_ptr<OffloadedOptimizer> offloaded_;
  std::vector<ParameterSpec> specs_;  // what the parameters were at creation
  std::vector<ParameterData> data_;   // of one step
  absl::Duration step_timeout_ = absl::Hours(1);
};

}  // namespace terrace
