// Against torch::optim::AdamW and Adam in double precision, element by
// element, on recorded N(0,1) gradients.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

AdamOptions Numbers(bool decoupled) {
  return {.learning_rate = 1e-3,
          .weight_decay = decoupled ? 1e-2 : 5e-3,
          .decoupled_decay = decoupled};
}

template <typename Reference, typename Options>
Reference MakeReference(const std::vector<at::Tensor>& parameters,
                        const AdamOptions& numbers) {
  return Reference(parameters, Options(numbers.learning_rate)
                                   .betas({numbers.beta1, numbers.beta2})
                                   .eps(numbers.epsilon)
                                   .weight_decay(numbers.weight_decay));
}

TEST(TorchPrecision, TwentyStepsStayWithinTheBoundOfDouble) {
  for (const bool decoupled : {true, false}) {
    SCOPED_TRACE(decoupled);
    const std::vector<at::Tensor> parameters = MakeParameters();
    const std::vector<at::Tensor> exact = CopiesOf(parameters, at::kDouble);
    const auto runtime = MakeRuntime();
    OptimizerOptions options = SmallChunks();
    options.adam = Numbers(decoupled);
    std::unique_ptr<::torch::optim::Optimizer> ours, theirs;
    if (decoupled) {
      auto made = OffloadedAdamW::Create(*runtime, parameters, options);
      ASSERT_TRUE(made.ok()) << made.status();
      ours = *std::move(made);
      theirs = std::make_unique<::torch::optim::AdamW>(
          MakeReference<::torch::optim::AdamW, ::torch::optim::AdamWOptions>(
              exact, options.adam));
    } else {
      auto made = OffloadedAdam::Create(*runtime, parameters, options);
      ASSERT_TRUE(made.ok()) << made.status();
      ours = *std::move(made);
      theirs = std::make_unique<::torch::optim::Adam>(
          MakeReference<::torch::optim::Adam, ::torch::optim::AdamOptions>(
              exact, options.adam));
    }
    for (int step = 1; step <= 20; ++step) {
      DrawGradients(step, parameters);
      for (size_t i = 0; i < parameters.size(); ++i) {
        exact[i].mutable_grad() = parameters[i].grad().to(at::kDouble);
      }
      ours->step();
      theirs->step();
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_LE(Distance(parameters[i], exact[i]), 1e-5) << i;
    }
  }
}

// The size of one unit in the last place of fp32 at `value`.
at::Tensor Ulp(const at::Tensor& value) {
  const at::Tensor magnitude = value.abs().to(at::kDouble).clamp_min(0x1p-126);
  return at::pow(2.0, at::floor(at::log2(magnitude)) - 23);
}

// The largest |actual - expected| in ulp of `size`.
double UlpBetween(const at::Tensor& actual, const at::Tensor& expected,
                  const at::Tensor& size) {
  return ((actual.detach().to(at::kDouble) - expected).abs() / Ulp(size))
      .max()
      .item<double>();
}

// One step from state that is equal in fp32: the error is that of one step's
// rounding. The bar is 4 ulp of the largest number that the step went through;
// in ulp of the larger of the old and the new parameter alone, which may both
// be far less than the update that was added, it is 6.
TEST(TorchPrecision, OneStepFromEqualStateIsWithinFourUlp) {
  const auto runtime = MakeRuntime();
  const std::vector<at::Tensor> parameters = MakeParameters();
  const AdamOptions numbers = Numbers(true);
  OptimizerOptions options = SmallChunks();
  options.adam = numbers;
  auto ours = OffloadedAdamW::Create(*runtime, parameters, options);
  ASSERT_TRUE(ours.ok()) << ours.status();
  double worst = 0, worst_of_parameter = 0;
  for (int step = 1; step <= 12; ++step) {
    DrawGradients(step, parameters);
    // The step in double, from what ours holds.
    std::vector<at::Tensor> p, m, v, quotient;
    for (const at::Tensor& parameter : parameters) {
      const auto state = (*ours)->StateOf(parameter);
      ASSERT_TRUE(state.ok()) << state.status();
      const at::Tensor g = parameter.grad().to(at::kDouble);
      const bool first = state->step == 0;
      ASSERT_EQ(state->step, step - 1);
      const at::Tensor m0 =
          first ? at::zeros_like(g) : state->exp_avg.to(at::kDouble);
      const at::Tensor v0 =
          first ? at::zeros_like(g) : state->exp_avg_sq.to(at::kDouble);
      m.push_back(numbers.beta1 * m0 + (1 - numbers.beta1) * g);
      v.push_back(numbers.beta2 * v0 + (1 - numbers.beta2) * g * g);
      const double k1 = 1 - std::pow(numbers.beta1, step);
      const double k2 = 1 - std::pow(numbers.beta2, step);
      quotient.push_back((m.back() / k1) /
                         ((v.back() / k2).sqrt() + numbers.epsilon));
      const at::Tensor p0 = parameter.detach().to(at::kDouble);
      p.push_back(p0 * (1 - numbers.learning_rate * numbers.weight_decay) -
                  numbers.learning_rate * quotient.back());
    }
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : parameters) {
      before.push_back(parameter.detach().clone());
    }
    const absl::Status status = (*ours)->TryStep();
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].numel() == 0) continue;
      const auto state = (*ours)->StateOf(parameters[i]);
      ASSERT_TRUE(state.ok()) << state.status();
      const at::Tensor g = parameters[i].grad().to(at::kDouble);
      const at::Tensor either = at::maximum(before[i].abs(), p[i].abs());
      const double error = std::max(
          {UlpBetween(parameters[i], p[i],
                      at::maximum(either, quotient[i].abs())),
           UlpBetween(state->exp_avg, m[i], at::maximum(m[i].abs(), g.abs())),
           UlpBetween(state->exp_avg_sq, v[i], at::maximum(v[i], g * g))});
      const double of_parameter = UlpBetween(parameters[i], p[i], either);
      EXPECT_LE(error, 4) << "step " << step << ", parameter " << i;
      EXPECT_LE(of_parameter, 6) << "step " << step << ", parameter " << i;
      worst = std::max(worst, error);
      worst_of_parameter = std::max(worst_of_parameter, of_parameter);
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  RecordProperty("worst_ulp_of_parameter", std::to_string(worst_of_parameter));
  std::cout << "worst error of one step: " << worst
            << " ulp of the largest intermediate, " << worst_of_parameter
            << " of the parameter\n";
}

TEST(TorchPrecision, HalfPrecisionFollowsItsMaster) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(toString(dtype));
    const std::vector<at::Tensor> parameters = MakeParameters(dtype);
    const std::vector<at::Tensor> exact = CopiesOf(parameters, at::kDouble);
    const auto runtime = MakeRuntime();
    auto ours = OffloadedAdamW::Create(*runtime, parameters, SmallChunks());
    ASSERT_TRUE(ours.ok()) << ours.status();
    ::torch::optim::AdamW theirs(exact, ::torch::optim::AdamWOptions(1e-3));
    for (int step = 1; step <= 20; ++step) {
      DrawGradients(step, parameters);
      for (size_t i = 0; i < parameters.size(); ++i) {
        exact[i].mutable_grad() = parameters[i].grad().to(at::kDouble);
      }
      (*ours)->step();
      theirs.step();
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto state = (*ours)->StateOf(parameters[i]);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_LE(Distance(state->master, exact[i]), 1e-5) << i;
      EXPECT_TRUE(SameBits(parameters[i], state->master.to(dtype))) << i;
    }
  }
}

}  // namespace
}  // namespace terrace
