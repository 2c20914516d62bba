// Gradients that are below from the moment that backward has made them.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A backward inside a backward, over the same weight.
struct Squared : torch::autograd::Function<Squared> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input, const at::Tensor& weight) {
    context->save_for_backward({input});
    context->saved_data["weight"] = weight;
    const c10::NoGradGuard guard;
    return input.mm(weight).square();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const c10::AutoGradMode guard(true);
    at::Tensor input =
        context->get_saved_variables()[0].detach().requires_grad_();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    torch::autograd::backward({input.mm(weight).square()}, {gradients[0]});
    return {input.grad(), at::Tensor()};
  }
};

class GradientsTest : public HookTest {
 protected:
  static at::Tensor Weight() {
    at::manual_seed(9);
    return (at::randn({30, 30}) / 6).set_requires_grad(true);
  }
  // Two segments, each with an own backward, and a direct use.
  static void Backward(const at::Tensor& weight, int micro) {
    const at::Tensor input = at::sin(at::arange(120).view({4, 30}) + micro)
                                 .to(at::kFloat)
                                 .set_requires_grad(true);
    const at::Tensor out =
        Squared::apply(Squared::apply(input, weight), weight);
    (out.mm(weight)).mean().backward();
  }
  at::Tensor Watched() {
    at::Tensor weight = Weight();
    EXPECT_TRUE(hook().ManageGradients({{"w", weight}}).ok());
    EXPECT_TRUE(hook().ManageGradients({{"w", weight}}).ok());  // once
    return weight;
  }
};

TEST_F(GradientsTest, SumsOverMicroBatchesAndSegmentsAreThoseWithoutAHook) {
  const at::Tensor plain = Weight();
  Make(64 << 10);
  const at::Tensor weight = Watched();
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      Backward(plain, 2 * step + micro);
      Backward(weight, 2 * step + micro);
      EXPECT_EQ(hook().stats().managed_tensors, 1);
      EXPECT_EQ(hook().EvictAll(), 1);
      EXPECT_TRUE(IsCold(weight.grad()));
    }
    EXPECT_TRUE(weight.grad().equal(plain.grad())) << step;
    EvictFromMemory();
    EXPECT_TRUE(weight.grad().equal(plain.grad())) << step;
    if (step == 1) {
      weight.mutable_grad().zero_();  // the same tensor goes on
      plain.mutable_grad().zero_();
    } else {
      weight.mutable_grad().reset();
      plain.mutable_grad().reset();
      EXPECT_EQ(hook().stats().managed_tensors, 0);
    }
    Make(64 << 10);  // the old hook ends, and .grad is in ordinary memory
    if (weight.grad().defined()) {
      EXPECT_FALSE(IsCold(weight.grad()));
      EXPECT_TRUE(weight.grad().equal(plain.grad()));
    }
    ASSERT_TRUE(hook().ManageGradients({{"w", weight}}).ok());
  }
}

TEST_F(GradientsTest, OnesThatOthersKeepHaveNamesOfTheirOwn) {
  Make(64 << 10);
  const at::Tensor weight = Watched();
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> expected;
  const at::Tensor plain = Weight();
  for (int step = 0; step < 3; ++step) {
    Backward(weight, step);
    Backward(plain, step);
    kept.push_back(weight.grad());
    expected.push_back(plain.grad());
    weight.mutable_grad().reset();
    plain.mutable_grad().reset();
  }
  EXPECT_EQ(hook().stats().managed_tensors, 3);
  hook().EvictAll();
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(IsCold(kept[i]));
    EXPECT_TRUE(kept[i].equal(expected[i]));
  }
}

TEST_F(GradientsTest, AfterTheEndNothingIsDoneToThem) {
  Make(64 << 10);
  const at::Tensor weight = Watched();
  Backward(weight, 0);
  hook().EvictAll();
  const at::Tensor plain = Weight();
  Backward(plain, 0);
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_FALSE(IsCold(weight.grad()));
  EXPECT_TRUE(weight.grad().equal(plain.grad()));
  Backward(weight, 1);
  Backward(plain, 1);
  EXPECT_TRUE(weight.grad().equal(plain.grad()));
  EXPECT_EQ(hook().stats().managed_tensors, 0);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(hook().ManageGradients({{"w", weight}})));
}

TEST_F(GradientsTest, WhatHasNoGradientIsNamedAndSparseOnesStay) {
  Make(64 << 10);
  for (const at::Tensor& tensor : {at::Tensor(), at::ones({3}), Weight() * 2}) {
    const absl::Status refused =
        hook().ManageGradients({{"w", Weight()}, {"x", tensor}});
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_EQ(refused.message(),
              "tensor 'x' is no leaf that requires a gradient");
  }
  const at::Tensor rows = at::ones({10, 4}).set_requires_grad(true);
  ASSERT_TRUE(hook().ManageGradients({{"rows", rows}}).ok());
  at::embedding(rows, at::arange(3), -1, false, /*sparse=*/true)
      .sum()
      .backward();
  EXPECT_TRUE(rows.grad().is_sparse());
  EXPECT_EQ(hook().stats().managed_tensors, 0);
}

TEST_F(GradientsTest, OneThatTheRuntimeRefusesMakesBackwardThrow) {
  Make(64 << 10);
  const at::Tensor weight = Watched();
  const at::Tensor large = at::ones({300, 300}).set_requires_grad(true);
  ASSERT_TRUE(hook().ManageGradients({{"large", large}}).ok());
  const std::string text = TextThrown([&] { large.sum().backward(); });
  EXPECT_THAT(text, StartsWith("terrace: 'large.grad' "));
  EXPECT_THAT(text, HasSubstr("and the budget is 64 KiB"));
  EXPECT_EQ(text, "terrace: " + std::string(hook().error().message()));
  Backward(weight, 0);
  EXPECT_EQ(hook().stats().managed_tensors, 1);
}

// What a program leases may leave no room, and no operation ends that.
TEST_F(GradientsTest, OneThatFindsNoRoomStaysInMemoryUntilThereIs) {
  const at::Tensor plain = Weight();
  Make(16 << 10);
  const at::Tensor weight = Watched();
  const at::Tensor large = Managed("large", at::ones({3 << 10}));
  {
    absl::StatusOr<Lease> lease = hook().MakeLease(large, Hook::Access::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    Backward(plain, 0);
    Backward(weight, 0);
    EXPECT_EQ(hook().stats().managed_tensors, 1) << "the gradient is";
    EXPECT_TRUE(weight.grad().equal(plain.grad()));
    EXPECT_TRUE(hook().error().ok()) << hook().error();
  }
  Backward(plain, 1);
  Backward(weight, 1);
  EXPECT_EQ(hook().stats().managed_tensors, 2);
  hook().EvictAll();
  EXPECT_TRUE(IsCold(weight.grad()));
  EXPECT_TRUE(weight.grad().equal(plain.grad()));
}

}  // namespace
}  // namespace terrace
