// A few layers that are trained with all that they have below, on a disk that
// can be made to fail, and the same training by LibTorch in plain memory.
//
//   SweptTraining training({.overlap = true});
//   std::string thrown = training.Forward(1);     // "": it did not; Backward()
//   absl::Status status = training.optimizer().TryStep();
//   training.ExpectLoss(1);
//   training.ExpectParametersAfter(1);
//
// One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "terrace/torch/offload.h"
#include "terrace/torch/optimizer.h"
#include "tests/libtorch/offload/sweep/faulty_tiers.h"

namespace terrace {

// Of each layer a weight of nine blocks and a small bias.
struct SweptModelImpl : ::torch::nn::Module {
  static constexpr int kLayers = 8;
  static constexpr int64_t kWidth = 96;

  SweptModelImpl();
  at::Tensor forward(const at::Tensor& input);

  ::torch::nn::ModuleList layers;
};
TORCH_MODULE(SweptModel);

struct SweptOptions {
  bool overlap = true;
  absl::Duration io_timeout = absl::Seconds(60);
  absl::Duration patience = absl::Seconds(60);  // of fetches
};

class SweptTraining {
 public:
  static constexpr int64_t kSteps = 3;

  explicit SweptTraining(const SweptOptions& options);
  // Ends all faults, the optimizer and the Offload.
  ~SweptTraining();
  SweptTraining(const SweptTraining&) = delete;
  SweptTraining& operator=(const SweptTraining&) = delete;

  // The passes of one step, with gradients set to none before; what is thrown.
  std::string Forward(int64_t step);
  std::string Backward();
  void ZeroGradients();

  // Each is a failure of the test where it does not hold.
  void ExpectLoss(int64_t step) const;
  void ExpectParametersAfter(int64_t step);
  // Each element that is not refused is what it was after one of the steps.
  // How many parameters throw, with our text.
  int CountRefused(int64_t first_step, int64_t last_step);
  void ExpectStateAfterAll();

  std::vector<at::Tensor> parameters() const { return model_->parameters(); }
  // In the order of parameters().
  std::vector<std::string> names() const;
  FaultyTiers& tiers() { return tiers_; }
  FaultPlan& faults() { return tiers_.faults(); }
  Offload& offload() { return *offload_; }
  OffloadedAdamW& optimizer() { return *optimizer_; }
  bool Mend() { return tiers_.Mend(offload_->runtime()); }

 private:
  FaultyTiers tiers_;
  SweptModel model_;
  at::Tensor loss_;
  std::unique_ptr<Offload> offload_;
  std::unique_ptr<OffloadedAdamW> optimizer_;
};

}  // namespace terrace
