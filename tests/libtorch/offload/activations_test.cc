// Activations below change no bit of losses and gradients.
#include <torch/csrc/autograd/custom_function.h>

#include "tests/libtorch/offload/activations_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ActivationsBitsTest : public ActivationsTest,
                            public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Parameters, ActivationsBitsTest, testing::Bool());

TEST_P(ActivationsBitsTest, GradientsAreTheSame) {
  OffloadOptions options = Alone();
  options.parameters = GetParam();
  Make(options);
  constexpr int64_t kSteps = 3;
  for (int64_t step = 0; step < kSteps; ++step) {
    offload_->BeginStep();
    ZeroGradients();
    for (int64_t pass = 0; pass < 2; ++pass) {
      const at::Tensor loss = Below(10 * step + pass);
      const at::Tensor expected = Plain(10 * step + pass);
      EXPECT_TRUE(loss.equal(expected));
      loss.backward();
      expected.backward();
    }
    ExpectSameGradients();
  }
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.hook.failures, 0) << offload_->error();
  EXPECT_LE(stats.runtime.host.peak_bytes, stats.budget_bytes);
  const SavedStats& saved = stats.hook.saved;
  EXPECT_EQ(saved.tensors, 2 * kSteps * kActivations);
  EXPECT_EQ(saved.bytes, 2 * kSteps * kActivations * kActivationBytes);
  EXPECT_EQ(saved.peak_bytes, kActivations * kActivationBytes);
  // Of each pass more than half has no room.
  EXPECT_GT(saved.evicted_bytes, saved.bytes / 2);
  EXPECT_GT(saved.fetched_bytes, saved.bytes / 2);
  EXPECT_GE(stats.runtime.bytes_written(), saved.evicted_bytes);
  EXPECT_GT(stats.hook.fetches_ahead, 0);
  // All of them are gone.
  EXPECT_EQ(stats.hook.managed_tensors, GetParam() ? 1 + 2 * kLayers : 0);
  EXPECT_EQ(stats.parameter_bytes, GetParam() ? kModelBytes : 0);
}

TEST_F(ActivationsTest, BackwardTwiceAndOfGradients) {
  Make(Alone());
  const auto run = [this](TiedModel& model, bool is_below) {
    model->zero_grad();
    const at::Tensor loss = is_below ? Below(3) : Plain(3);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor slope =
        ::torch::autograd::grad({loss}, {model->out}, {}, true, true)[0];
    slope.square().sum().backward();
  };
  run(model_, true);
  run(plain_, false);
  ExpectSameGradients();
  EXPECT_GT(Saved().fetched_bytes, 2 * 16 * kActivationBytes);
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
}

// Forward without a graph, and again with one in backward.
struct Recomputed : ::torch::autograd::Function<Recomputed> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context,
                            const at::Tensor& input, const at::Tensor& weight) {
    context->save_for_backward({input, weight});
    return Segment(input, weight);
  }
  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context,
      const ::torch::autograd::variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    const at::Tensor input = saved[0].detach().requires_grad_();
    const at::Tensor weight = saved[1].detach().requires_grad_();
    const at::AutoGradMode with_graph(true);
    return ::torch::autograd::grad({Segment(input, weight)}, {input, weight},
                                   slopes);
  }
  static at::Tensor Segment(const at::Tensor& input, const at::Tensor& weight) {
    return at::tanh(at::tanh(at::mm(input, weight)).exp());
  }
};

TEST_F(ActivationsTest, OfRecomputedSegmentsTheInputsGoBelow) {
  Make(Alone());
  at::manual_seed(2);
  const at::Tensor weight = at::randn({kWidth, kWidth}).div_(8);
  const at::Tensor inputs = at::randn({kRows, kWidth});
  const auto run = [&](bool is_recomputed) {
    at::Tensor leaf = weight.clone().requires_grad_();
    const ActivationScope saving = is_recomputed
                                       ? offload_->SaveActivations({{inputs}})
                                       : ActivationScope();
    at::Tensor hidden = inputs;
    for (int i = 0; i < 12; ++i) {
      hidden = is_recomputed ? Recomputed::apply(hidden, leaf)
                             : Recomputed::Segment(hidden, leaf);
    }
    hidden.sum().backward();
    return leaf.grad();
  };
  EXPECT_TRUE(run(true).equal(run(false)));
  // Of all but the first, and what a segment computes again in the scope.
  EXPECT_GE(Saved().tensors, 11);
  EXPECT_GT(Saved().evicted_bytes, 0);
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
}

TEST_F(ActivationsTest, AWriteInPlaceIsToldInBackward) {
  Make(Alone());
  at::Tensor weight = at::rand({kRows, kWidth}).requires_grad_();
  at::Tensor result;
  {
    const ActivationScope saving = offload_->SaveActivations();
    result = weight.exp();
  }
  EXPECT_EQ(Saved().tensors, 1);
  at::Tensor after = result.detach();
  after.mul_(2);
  EXPECT_THAT(ThrownBy([&] { result.sum().backward(); }),
              HasSubstr("modified by an inplace operation: [CPUFloatType "
                        "[128, 64]] is at version 1; expected version 0"));
}

struct ScaledImpl : ::torch::nn::Module {
  ScaledImpl() {
    scale = register_parameter("scale", at::rand({kRows, kWidth}));
    mask = register_buffer("mask", at::rand({kRows, kWidth}));
  }
  at::Tensor forward(const at::Tensor& input, const at::Tensor& foreign) {
    return (scale * input * mask).exp() * foreign;
  }
  at::Tensor scale, mask;
};
TORCH_MODULE(Scaled);

TEST_F(ActivationsTest, WhatIsTheModelsOrItsCallersStaysInMemory) {
  Scaled scaled;
  auto made = Offload::Create(*scaled, Alone());
  ASSERT_TRUE(made.ok()) << made.status();
  const at::Tensor input = at::rand({kRows, kWidth}).requires_grad_();
  std::vector<float> memory(kRows * kWidth, 0.5F);
  const at::Tensor foreign = at::from_blob(memory.data(), {kRows, kWidth});
  const std::vector<at::Tensor> all = {scaled->scale, scaled->mask, input};
  std::vector<const void*> addresses;
  for (const at::Tensor& each : all) addresses.push_back(each.const_data_ptr());
  at::Tensor result;
  {
    const ActivationScope saving =
        (*made)->SaveActivations({{input.view({-1})}});
    result = scaled->forward(input, foreign);
  }
  // Of exp the result.
  EXPECT_EQ((*made)->stats().hook.managed_tensors, 1);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].const_data_ptr(), addresses[i]) << i;
  }
  result.sum().backward();
  const at::Tensor expected =
      foreign * (scaled->scale * input * scaled->mask).detach().exp() *
      scaled->mask;
  EXPECT_TRUE(input.grad().allclose(expected * scaled->scale.detach()));
  {
    const ActivationScope saving = (*made)->SaveActivations();
    result = scaled->forward(input, foreign);
  }
  EXPECT_EQ((*made)->stats().hook.managed_tensors, 2);  // the input too
}

TEST_F(ActivationsTest, SmallAndLargeOnesStayInMemory) {
  Make(Alone());
  const int64_t limit = offload_->stats().activation_limit_bytes;
  EXPECT_EQ(limit, (256 << 10) / 5);
  Below(1, /*rows=*/63).backward();  // less than 16 KiB
  EXPECT_EQ(Saved().tensors, 0);
  Below(1, /*rows=*/64).backward();
  EXPECT_EQ(Saved().tensors, kActivations);
  Below(1, limit / (4 * kWidth)).backward();  // with its header more
  EXPECT_EQ(Saved().tensors, kActivations);
}

TEST_F(ActivationsTest, AShareHasRoomForThemBesideIt) {
  OffloadOptions options = Alone();
  options.parameters = true;
  options.memory_budget_bytes = 0;
  options.memory_budget_share = 0.5;
  Make(options);
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.activation_budget_bytes, 256 << 20);
  EXPECT_EQ(stats.budget_bytes, (256 << 20) + kModelBytes / 2);
  EXPECT_GT(stats.activation_limit_bytes, 48 << 20);
}

}  // namespace
}  // namespace terrace
