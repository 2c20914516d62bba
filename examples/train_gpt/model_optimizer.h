// What the training loop asks of an optimizer, and those that keep all they
// need in memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "examples/train_gpt/flags.h"
#include "examples/train_gpt/gpt.h"

namespace train_gpt {

// The same in every mode, so that runs can be compared.
struct AdamWNumbers {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

class ModelOptimizer {
 public:
  virtual ~ModelOptimizer() = default;
  // One update of every parameter from its .grad, clipped as the flags say.
  // Returns the L2 norm of all gradients before clipping, or 0 when there is
  // no clipping to need it.
  virtual absl::StatusOr<double> Step() = 0;
};

// 1 / max(1, (norm + 1e-6) / clip); 1 for clip 0.
double ClipFactor(double norm, double clip);

// `model` must outlive the optimizer.
//   adamw: LibTorch's fused AdamW; 16-bit parameters are cast from an fp32
//     master that it steps.
//   sgd: keeps no state and makes no copies: the least memory any training of
//     this model takes.
std::unique_ptr<ModelOptimizer> MakeInMemoryOptimizer(const Flags& flags,
                                                      Gpt& model);

}  // namespace train_gpt
