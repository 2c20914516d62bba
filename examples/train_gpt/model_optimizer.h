// What the training loop asks of an optimizer, and those that keep all they
// need in memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/gpt.h"

namespace train_gpt {

class ModelOptimizer {
 public:
  virtual ~ModelOptimizer() = default;
  // One update of every parameter from its .grad, which is divided by the loss
  // scale and clipped as the flags say. Returns the L2 norm of all gradients
  // before clipping, or 0 when there is neither clipping nor skipping to need
  // it; one that is not finite, where the flags skip such steps: nothing has
  // changed.
  virtual absl::StatusOr<double> Step(double loss_scale) = 0;
  // What it computes of the model's parameter of that index: the parameter
  // itself, or the fp32 master of a 16-bit one. Shared or a copy.
  virtual absl::StatusOr<at::Tensor> Exact(int64_t index) = 0;
};

// What scaled gradients of an unscaled norm are multiplied by: 1 / (loss_scale
// * max(1, (norm + 1e-6) / clip)), NaN for such a norm; 1 / loss_scale for clip
// 0.
double ClipFactor(double norm, double clip, double loss_scale);

// `model` must outlive the optimizer.
//   adamw: LibTorch's fused AdamW, or its Adam with L2 where the flags' decay
//   is
//     part of the gradient; 16-bit parameters are cast from an fp32 master that
//     it steps.
//   sgd: keeps no state and makes no copies: the least memory any training of
//     this model takes.
std::unique_ptr<ModelOptimizer> MakeInMemoryOptimizer(const Flags& flags,
                                                      Gpt& model);

// The same again, by the definition of its arithmetic in terrace/adam.h:
// serial, slow, and what the offloaded optimizer must equal bit for bit.
std::unique_ptr<ModelOptimizer> MakeReferenceOptimizer(const Flags& flags,
                                                       Gpt& model);

}  // namespace train_gpt
