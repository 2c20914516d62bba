#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "examples/train_gpt/model_optimizer.h"

namespace train_gpt {
namespace {

// By blocks, so that the cast of 16-bit gradients stays small.
double GradientNorm(const Gpt& model) {
  constexpr int64_t kBlock = 1 << 20;
  double squares = 0;
  for (const Gpt::Parameter& parameter : model.parameters()) {
    const at::Tensor flat = parameter.tensor.grad().view({-1});
    for (int64_t first = 0; first < flat.numel(); first += kBlock) {
      const at::Tensor block =
          flat.narrow(0, first, std::min(kBlock, flat.numel() - first));
      const double norm =
          at::linalg_vector_norm(block.to(at::kFloat)).item<double>();
      squares += norm * norm;
    }
  }
  return std::sqrt(squares);
}

class Sgd : public ModelOptimizer {
 public:
  Sgd(const Flags& flags, Gpt& model) : flags_(flags), model_(model) {}

  absl::StatusOr<double> Step(double loss_scale) override {
    at::NoGradGuard no_grad;
    const bool needed = flags_.clip > 0 || flags_.skip_nonfinite;
    const double norm = needed ? GradientNorm(model_) / loss_scale : 0;
    if (flags_.skip_nonfinite && !std::isfinite(norm)) return norm;
    const double rate =
        flags_.learning_rate * ClipFactor(norm, flags_.clip, loss_scale);
    for (const Gpt::Parameter& parameter : model_.parameters()) {
      parameter.tensor.add_(parameter.tensor.grad(), -rate);
    }
    return norm;
  }

  absl::StatusOr<at::Tensor> Exact(int64_t index) override {
    return model_.parameters()[static_cast<size_t>(index)].tensor.detach();
  }

 private:
  const Flags flags_;
  Gpt& model_;
};

class Adam : public ModelOptimizer {
 public:
  Adam(const Flags& flags, Gpt& model) : flags_(flags), model_(model) {
    at::NoGradGuard no_grad;
    // So late a step has no bias left to correct.
    const double first = flags.adam.bias_correction ? 0 : 1e9;
    for (const Gpt::Parameter& parameter : model.parameters()) {
      const at::Tensor value = parameter.tensor.detach();
      State state;
      // The same storage when the parameter is fp32 itself.
      state.master = value.to(at::kFloat);
      state.moment1 = at::zeros_like(state.master);
      state.moment2 = at::zeros_like(state.master);
      state.step = at::full({}, first, at::kFloat);
      states_.push_back(state);
    }
  }

  absl::StatusOr<double> Step(double loss_scale) override {
    at::NoGradGuard no_grad;
    const bool needed = flags_.clip > 0 || flags_.skip_nonfinite;
    const double norm = needed ? GradientNorm(model_) / loss_scale : 0;
    if (flags_.skip_nonfinite && !std::isfinite(norm)) return norm;
    const terrace::AdamOptions adam =
        terrace::AdamAt(flags_.schedule, ++step_, flags_.adam);
    const double factor = ClipFactor(norm, flags_.clip, loss_scale);
    for (size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      const at::Tensor& value = model_.parameters()[i].tensor;
      at::Tensor gradient = value.grad().to(at::kFloat);
      if (factor != 1) gradient.mul_(factor);
      state.step.add_(1);
      StepOne(adam, gradient, state);
      if (value.scalar_type() != at::kFloat) {
        value.detach().copy_(state.master);
      }
    }
    return norm;
  }

  absl::StatusOr<at::Tensor> Exact(int64_t index) override {
    return states_[static_cast<size_t>(index)].master;
  }

 private:
  struct State {
    at::Tensor master, moment1, moment2, step;
  };

  static void StepOne(const terrace::AdamOptions& adam,
                      const at::Tensor& gradient, State& state) {
    // They differ in what becomes of the decay.
    constexpr bool kAmsgrad = false, kMaximize = false;
    if (adam.decoupled_decay) {
      at::_fused_adamw_({state.master}, {gradient}, {state.moment1},
                        {state.moment2}, {}, {state.step}, adam.learning_rate,
                        adam.beta1, adam.beta2, adam.weight_decay, adam.epsilon,
                        kAmsgrad, kMaximize);
    } else {
      at::_fused_adam_({state.master}, {gradient}, {state.moment1},
                       {state.moment2}, {}, {state.step}, adam.learning_rate,
                       adam.beta1, adam.beta2, adam.weight_decay, adam.epsilon,
                       kAmsgrad, kMaximize);
    }
  }

  const Flags flags_;
  Gpt& model_;
  int64_t step_ = 0;  // of those that were not skipped
  std::vector<State> states_;
};

}  // namespace

double ClipFactor(double norm, double clip, double loss_scale) {
  const double ratio = clip > 0 ? (norm + 1e-6) / clip : 0;
  const double divisor = ratio <= 1 ? 1.0 : ratio;  // NaN stays NaN
  return 1.0 / (loss_scale * divisor);
}

std::unique_ptr<ModelOptimizer> MakeInMemoryOptimizer(const Flags& flags,
                                                      Gpt& model) {
  if (flags.optimizer == OptimizerKind::kSgd) {
    return std::make_unique<Sgd>(flags, model);
  }
  return std::make_unique<Adam>(flags, model);
}

}  // namespace train_gpt
