// OffloadedAdamW as a torch::optim::Optimizer: groups, schedulers, clipping,
// accumulation, odd tensors. Bits against an OffloadedAdamW that is told the
// same in another way, values against torch::optim::AdamW.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {
namespace {

using ::torch::optim::AdamWOptions;
using ::torch::optim::OptimizerParamGroup;

std::unique_ptr<OffloadedAdamW> Make(Runtime& runtime,
                                     std::vector<OptimizerParamGroup> groups,
                                     OptimizerOptions options = SmallChunks()) {
  auto made = OffloadedAdamW::Create(runtime, std::move(groups), options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::unique_ptr<OffloadedAdamW> Make(Runtime& runtime,
                                     std::vector<at::Tensor> parameters,
                                     OptimizerOptions options = SmallChunks()) {
  return Make(runtime, {OptimizerParamGroup(std::move(parameters))}, options);
}

// Ours in fp32 beside LibTorch's in double, with the same gradients.
class Pair {
 public:
  explicit Pair(const std::vector<at::Tensor>& parameters)
      : parameters_(parameters), exact_(CopiesOf(parameters, at::kDouble)) {}

  // Groups of some of the parameters, for ours and theirs.
  std::vector<OptimizerParamGroup> Groups(
      bool exact, const std::vector<std::vector<size_t>>& members,
      const std::vector<AdamWOptions>& options) const {
    std::vector<OptimizerParamGroup> groups;
    for (size_t i = 0; i < members.size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (size_t j : members[i]) {
        tensors.push_back(exact ? exact_[j] : parameters_[j]);
      }
      groups.emplace_back(tensors, std::make_unique<AdamWOptions>(options[i]));
    }
    return groups;
  }
  void Draw(int64_t step) {
    DrawGradients(step, parameters_);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      exact_[i].mutable_grad() = parameters_[i].grad().to(at::kDouble);
    }
  }
  void DropGradient(size_t i) {
    parameters_[i].mutable_grad().reset();
    exact_[i].mutable_grad().reset();
  }
  void ExpectNear() const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      EXPECT_LE(Distance(parameters_[i], exact_[i]), 1e-5) << i;
    }
  }
  std::vector<at::Tensor>& parameters() { return parameters_; }
  std::vector<at::Tensor>& exact() { return exact_; }

 private:
  std::vector<at::Tensor> parameters_, exact_;
};

AdamWOptions Second() {
  return AdamWOptions(3e-3).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.2);
}

TEST(TorchOptimizer, GroupsHaveOptionsOfTheirOwnThatMayChange) {
  const auto runtime = MakeRuntime();
  Pair pair(MakeParameters());
  const std::vector<std::vector<size_t>> members = {{0, 1, 2}, {3, 4}, {5}};
  const std::vector<AdamWOptions> options = {AdamWOptions(1e-3), Second(),
                                             AdamWOptions(0)};
  auto ours = Make(*runtime, pair.Groups(false, members, options));
  ::torch::optim::AdamW theirs(pair.Groups(true, members, options));
  const at::Tensor frozen = pair.parameters()[5].detach().clone();
  for (int step = 1; step <= 10; ++step) {
    for (::torch::optim::Optimizer* optimizer :
         {static_cast<::torch::optim::Optimizer*>(ours.get()),
          static_cast<::torch::optim::Optimizer*>(&theirs)}) {
      auto& group =
          static_cast<AdamWOptions&>(optimizer->param_groups()[1].options());
      group.betas({0.8 - 0.01 * step, 0.99});
      group.weight_decay(0.05 * step);
      optimizer->param_groups()[0].options().set_lr(1e-3 / step);
    }
    pair.Draw(step);
    ours->step();
    theirs.step();
  }
  pair.ExpectNear();
  EXPECT_TRUE(SameBits(pair.parameters()[5], frozen));
}

TEST(TorchOptimizer, SchedulersSetItsRate) {
  const auto runtime = MakeRuntime();
  Pair pair(MakeParameters());
  auto ours = Make(*runtime, pair.parameters());
  ::torch::optim::AdamW theirs(pair.exact(), AdamWOptions(1e-3));
  ::torch::optim::StepLR ours_schedule(*ours, 3, 0.5);
  ::torch::optim::StepLR theirs_schedule(theirs, 3, 0.5);
  for (int step = 1; step <= 9; ++step) {
    pair.Draw(step);
    ours->step();
    theirs.step();
    ours_schedule.step();
    theirs_schedule.step();
    EXPECT_EQ(ours->param_groups()[0].options().get_lr(),
              theirs.param_groups()[0].options().get_lr());
  }
  EXPECT_LT(ours->param_groups()[0].options().get_lr(), 5e-4);
  pair.ExpectNear();
}

TEST(TorchOptimizer, ClipsInTheStepAsTheUsersOwnClipDoes) {
  const auto runtime = MakeRuntime(1 << 20);
  const std::vector<at::Tensor> fused = MakeParameters();
  const std::vector<at::Tensor> own = CopiesOf(fused, at::kFloat);
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 0.5;
  auto first = Make(*runtime, fused, options);
  options.max_gradient_norm = 0;
  options.name = "second";
  auto second = Make(*runtime, own, options);
  for (int step = 1; step <= 5; ++step) {
    DrawGradients(step, fused);
    DrawGradients(step, own);
    const double norm = ::torch::nn::utils::clip_grad_norm_(own, 0.5);
    first->step();
    second->step();
    EXPECT_NEAR(first->offloaded().last_report().gradient_norm, norm,
                1e-4 * norm);
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_LE(Distance(fused[i], own[i]), 1e-6) << i;
    }
  }
  // Also for one step only.
  DrawGradients(6, own);
  ASSERT_TRUE(second->TryStep({.max_gradient_norm = 0.5}).ok());
  EXPECT_GT(second->offloaded().last_report().gradient_norm, 100);
}

TEST(TorchOptimizer, TakesAccumulatedGradientsAndFreesThem) {
  const auto runtime = MakeRuntime();
  at::Tensor weight = at::full({8}, 0.5).set_requires_grad(true);
  auto optimizer = Make(*runtime, std::vector<at::Tensor>{weight});
  at::Tensor other = weight.detach().clone().set_requires_grad(true);
  (weight * weight).sum().backward();
  (weight * 3).sum().backward();
  (other * other + other * 3).sum().backward();
  EXPECT_TRUE(SameBits(weight.grad(), other.grad()));
  optimizer->step();
  optimizer->zero_grad();
  EXPECT_FALSE(weight.grad().defined());
  const at::Tensor after = weight.detach().clone();
  optimizer->step();  // nothing has a gradient
  EXPECT_TRUE(SameBits(weight, after));
  EXPECT_FALSE(SameBits(weight, other));
}

TEST(TorchOptimizer, RunsTheClosureWithGradientsAndReturnsItsLoss) {
  const auto runtime = MakeRuntime();
  at::Tensor weight = at::full({4}, 2.0).set_requires_grad(true);
  auto optimizer = Make(*runtime, std::vector<at::Tensor>{weight});
  at::NoGradGuard off;
  const at::Tensor loss = optimizer->step([&] {
    optimizer->zero_grad();
    at::Tensor value = (weight * weight).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 16);
  EXPECT_LT(weight.max().item<float>(), 2);
  EXPECT_EQ(optimizer->offloaded().step(), 1);
}

TEST(TorchOptimizer, AParameterWithoutAGradientKeepsItsCounter) {
  const auto runtime = MakeRuntime();
  Pair pair(MakeParameters());
  auto ours = Make(*runtime, pair.parameters());
  ::torch::optim::AdamW theirs(pair.exact(), AdamWOptions(1e-3));
  for (int step = 1; step <= 9; ++step) {
    pair.Draw(step);
    for (size_t i = 0; i < 6; ++i) {
      if ((static_cast<size_t>(step) + i) % 3 == 0) pair.DropGradient(i);
    }
    ours->step();
    theirs.step();
  }
  pair.ExpectNear();
  for (size_t i = 0; i < 6; ++i) {
    const auto state = ours->StateOf(pair.parameters()[i]);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 6) << i;
  }
}

TEST(TorchOptimizer, TakesGroupsAndParametersThatComeLaterAndGo) {
  const auto runtime = MakeRuntime();
  Pair pair(MakeParameters());
  auto ours =
      Make(*runtime, pair.Groups(false, {{0, 1}}, {AdamWOptions(1e-3)}));
  ::torch::optim::AdamW theirs(
      pair.Groups(true, {{0, 1}}, {AdamWOptions(1e-3)}));
  const auto step_both = [&](int step) {
    pair.Draw(step);
    ours->step();
    theirs.step();
  };
  step_both(1);
  step_both(2);
  ours->add_param_group(pair.Groups(false, {{2, 4}}, {Second()})[0]);
  theirs.add_param_group(pair.Groups(true, {{2, 4}}, {Second()})[0]);
  step_both(3);
  ours->param_groups()[0].params().push_back(pair.parameters()[5]);
  theirs.param_groups()[0].params().push_back(pair.exact()[5]);
  step_both(4);
  // Frozen: autograd makes no more gradients for it.
  pair.parameters()[0].set_requires_grad(false);
  for (int step = 5; step <= 7; ++step) {
    pair.Draw(step);
    pair.DropGradient(0);
    ours->step();
    theirs.step();
  }
  // One leaves its group for another, with its state.
  auto& from = ours->param_groups()[0].params();
  from.erase(from.begin() + 1);
  ours->param_groups()[1].params().push_back(pair.parameters()[1]);
  auto& theirs_from = theirs.param_groups()[0].params();
  theirs_from.erase(theirs_from.begin() + 1);
  theirs.param_groups()[1].params().push_back(pair.exact()[1]);
  step_both(8);
  pair.ExpectNear();
  EXPECT_FALSE(ours->StateOf(pair.parameters()[3]).ok());  // never given
  EXPECT_EQ(ours->StateOf(pair.parameters()[1])->step, 8);
}

TEST(TorchOptimizer, StepsTensorsThatAreNotContiguous) {
  const auto runtime = MakeRuntime(1 << 20);
  std::vector<at::Tensor> plain, odd;
  const auto add = [&](const at::Tensor& values, const at::Tensor& place) {
    plain.push_back(values.clone().set_requires_grad(true));
    odd.push_back(place.copy_(values).detach().set_requires_grad(true));
  };
  at::manual_seed(5);
  add(at::randn({13, 7}), at::empty({7, 13}).t());
  add(at::randn({2, 3, 4, 5}), at::empty({2, 4, 5, 3}).permute({0, 3, 1, 2}));
  const at::Tensor shared = at::zeros({50, 4});
  add(at::randn({50}), shared.select(1, 1));
  add(at::randn({50}), shared.select(1, 2));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (size_t i = 0; dtype != at::kFloat && i < odd.size(); ++i) {
      plain[i] = plain[i].detach().to(dtype).set_requires_grad(true);
      odd[i] = odd[i].detach().to(dtype).set_requires_grad(true);
    }
    ASSERT_FALSE(odd[0].is_contiguous());
    OptimizerOptions options = SmallChunks();
    options.name = toString(dtype);
    auto first = Make(*runtime, plain, options);
    options.name += "_odd";
    auto second = Make(*runtime, odd, options);
    for (int step = 1; step <= 3; ++step) {
      DrawGradients(step, plain);
      for (size_t i = 0; i < odd.size(); ++i) {
        // Gradients with strides of their own, also expanded ones.
        odd[i].mutable_grad() = plain[i].grad().clone();
        if (odd[i].dim() > 1 && step == 2) {
          odd[i].mutable_grad() =
              at::empty_like(odd[i].detach()).copy_(plain[i].grad());
        }
        if (odd[i].dim() == 1 && step == 3) {
          odd[i].mutable_grad() = at::ones({1}).to(dtype).expand({50});
          plain[i].mutable_grad() = at::ones({50}).to(dtype);
        }
      }
      const auto version = odd[0]._version();
      first->step();
      second->step();
      EXPECT_GT(odd[0]._version(), version);
      for (size_t i = 0; i < odd.size(); ++i) {
        EXPECT_TRUE(SameBits(plain[i], odd[i])) << i << ", step " << step;
        const auto a = first->StateOf(plain[i]), b = second->StateOf(odd[i]);
        ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
        EXPECT_TRUE(SameBits(a->exp_avg, b->exp_avg));
      }
    }
  }
  EXPECT_EQ(shared.select(1, 0).abs().max().item<float>(), 0);
}

TEST(TorchOptimizer, ScalesUnderLossScalingAndSkipsInfinities) {
  const auto runtime = MakeRuntime(1 << 20);
  const std::vector<at::Tensor> scaled = MakeParameters(at::kHalf);
  const std::vector<at::Tensor> plain = CopiesOf(scaled, at::kHalf);
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  auto first = Make(*runtime, scaled, options);
  options.name = "plain";
  auto second = Make(*runtime, plain, options);
  for (int step = 1; step <= 3; ++step) {
    DrawGradients(step, plain);
    DrawGradients(step, scaled);
    for (const at::Tensor& parameter : scaled) parameter.grad().mul_(256);
    ASSERT_TRUE(first->TryStep({.loss_scale = 256}).ok());
    second->step();
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(SameBits(scaled[i], plain[i])) << i;
    }
  }
  const auto before = first->StateOf(scaled[4]);
  ASSERT_TRUE(before.ok());
  const auto version = scaled[4]._version();
  scaled[4].grad()[7] = std::numeric_limits<float>::infinity();
  first->step();
  EXPECT_TRUE(first->offloaded().last_report().skipped);
  EXPECT_EQ(scaled[4]._version(), version);
  EXPECT_TRUE(SameBits(scaled[4], plain[4]));
  const auto after = first->StateOf(scaled[4]);
  EXPECT_EQ(after->step, 3);
  EXPECT_TRUE(SameBits(after->exp_avg, before->exp_avg));
  EXPECT_TRUE(SameBits(after->master, before->master));
}

TEST(TorchOptimizer, AutogradNoticesTheStep) {
  const auto runtime = MakeRuntime();
  at::Tensor weight = at::ones({3}).set_requires_grad(true);
  at::Tensor still = at::ones({3}).set_requires_grad(true);
  auto optimizer = Make(*runtime, std::vector<at::Tensor>{weight, still});
  const at::Tensor graph = (weight * weight * still).sum();
  const auto version = still._version();
  weight.mutable_grad() = at::ones({3});
  optimizer->step();
  EXPECT_EQ(still._version(), version);
  EXPECT_THROW(graph.backward(), c10::Error);
}

TEST(TorchOptimizer, TwoOfThemLiveInOneProcess) {
  const auto first_runtime = MakeRuntime(), second_runtime = MakeRuntime();
  const std::vector<at::Tensor> a = MakeParameters();
  const std::vector<at::Tensor> b = CopiesOf(a, at::kFloat);
  auto first = Make(*first_runtime, a);
  auto second = Make(*second_runtime, b);
  for (int step = 1; step <= 3; ++step) {
    DrawGradients(step, a);
    DrawGradients(step, b);
    first->step();
    second->step();
  }
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(SameBits(a[i], b[i]));
}

TEST(TorchOptimizer, SlicesOfOneStorageAreParametersOfTheirOwn) {
  const auto runtime = MakeRuntime();
  const at::Tensor flat = at::randn({100});
  std::vector<at::Tensor> slices = {
      flat.slice(0, 0, 37).detach().set_requires_grad(true),
      flat.slice(0, 37, 100).detach().set_requires_grad(true)};
  auto optimizer = Make(*runtime, slices);
  DrawGradients(1, slices);
  const at::Tensor before = flat.clone();
  optimizer->step();
  EXPECT_TRUE((before != flat).all().item<bool>());
}

}  // namespace
}  // namespace terrace
