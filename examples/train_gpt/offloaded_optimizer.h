// The optimizer whose state is on disk: a Runtime and LibTorch's face of
// Terrace's OffloadedOptimizer.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/report.h"
#include "examples/train_gpt/state_plan.h"
#include "terrace/runtime.h"
#include "terrace/stats.h"
#include "terrace/torch/offload.h"
#include "terrace/torch/optimizer.h"

namespace train_gpt {

class OffloadedModelOptimizer : public ModelOptimizer {
 public:
  // On that plan's runtime. `model` must outlive the optimizer.
  static absl::StatusOr<std::unique_ptr<OffloadedModelOptimizer>> Create(
      const OffloadPlan& plan, std::unique_ptr<terrace::Runtime> runtime,
      Gpt& model);
  // In the place of the model's parameters, which outlives it.
  static absl::StatusOr<std::unique_ptr<OffloadedModelOptimizer>> Join(
      const OffloadPlan& plan, terrace::Offload& parameters, Gpt& model);

  absl::StatusOr<double> Step(double loss_scale) override;
  absl::StatusOr<at::Tensor> Exact(int64_t index) override;

  const terrace::StepReport& last_report() const {
    return optimizer_->offloaded().last_report();
  }
  terrace::OffloadedOptimizer& offloaded() { return optimizer_->offloaded(); }
  terrace::Stats GetStats() const { return runtime_.GetStats(); }

  // Adds to the record what there is to say of the last step: its times, and
  // the bytes moved since the call before. Returns the statistics of now.
  terrace::Stats Complete(StepRecord* record);

  // Waits for what is under way and removes the files. Once.
  absl::Status Close();

 private:
  OffloadedModelOptimizer(terrace::Runtime& runtime,
                          std::unique_ptr<terrace::Runtime> owned,
                          const OffloadPlan& plan, const Gpt& model);

  terrace::Runtime& runtime_;
  std::unique_ptr<terrace::Runtime> owned_;  // null: it is the parameters'
  const terrace::AdamOptions adam_;
  const terrace::LearningRateSchedule schedule_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<terrace::OffloadedAdamBase> optimizer_;
  // Until the last Complete.
  int64_t bytes_read_ = 0, bytes_written_ = 0;
  std::vector<int64_t> link_bytes_;
};

}  // namespace train_gpt
