// In which scope, on which thread, activations go below.
#include <thread>

#include "tests/libtorch/offload/activations_fixture.h"

namespace terrace {
namespace {

using ActivationScopeTest = ActivationsTest;

at::Tensor GradientOf(const at::Tensor& loss, TiedModel& model) {
  return ::torch::autograd::grad({loss}, {model->out})[0];
}

TEST_F(ActivationScopeTest, NothingGoesBelowOutsideOfOne) {
  Make(Alone());
  LossOf(model_, TokensOf(1)).backward();
  { const ActivationScope saving = offload_->SaveActivations(); }
  LossOf(model_, TokensOf(1)).backward();
  EXPECT_EQ(Saved().tensors, 0);
  {
    const ActivationScope saving = offload_->SaveActivations();
    const c10::NoGradGuard without;
    LossOf(model_, TokensOf(1));
  }
  {
    const ActivationScope saving = offload_->SaveActivations();
    const c10::InferenceMode inference;
    LossOf(model_, TokensOf(1));
  }
  EXPECT_EQ(Saved().tensors, 0);
}

TEST_F(ActivationScopeTest, TheInnermostCounts) {
  Make(Alone());
  auto made = Offload::Create(*plain_, Alone());
  ASSERT_TRUE(made.ok()) << made.status();
  Offload& inner = **made;
  std::vector<at::Tensor> kept;
  const ActivationScope outside = offload_->SaveActivations();
  {
    const ActivationScope inside = inner.SaveActivations();
    kept.push_back(LossOf(plain_, TokensOf(1)));
    EXPECT_EQ(inner.stats().hook.managed_tensors, kActivations);
    EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
  }
  kept.push_back(LossOf(model_, TokensOf(1)));
  EXPECT_EQ(inner.stats().hook.managed_tensors, kActivations);
  EXPECT_EQ(offload_->stats().hook.managed_tensors, kActivations);
  kept[0].backward();
  kept[1].backward();
  ExpectSameGradients();
}

TEST_F(ActivationScopeTest, TheyEndInAnyOrderAndOnAnyThread) {
  Make(Alone());
  ActivationScope first = offload_->SaveActivations();
  ActivationScope second = offload_->SaveActivations();
  first.End();
  first.End();
  const at::Tensor with_second = LossOf(model_, TokensOf(1));
  EXPECT_EQ(Saved().tensors, kActivations);
  std::thread([moved = std::move(second)] {}).join();
  const at::Tensor with_none = LossOf(model_, TokensOf(1));
  EXPECT_EQ(Saved().tensors, kActivations);
  first = offload_->SaveActivations();
  first = ActivationScope();
  const at::Tensor again = LossOf(model_, TokensOf(1));
  EXPECT_EQ(Saved().tensors, kActivations);
}

TEST_F(ActivationScopeTest, ItIsOfOneThread) {
  Make(Alone());
  at::Tensor theirs;
  {
    const ActivationScope saving = offload_->SaveActivations();
    std::thread([&] { theirs = LossOf(model_, TokensOf(1)); }).join();
  }
  EXPECT_EQ(Saved().tensors, 0);
  // And of another the graph is anyone's.
  std::thread([&] { theirs = Below(1); }).join();
  EXPECT_EQ(Saved().tensors, kActivations);
  theirs.backward();
  Plain(1).backward();
  ExpectSameGradients();
}

TEST_F(ActivationScopeTest, ThreadsSaveAtATime) {
  Make(Alone());
  const at::Tensor tokens = TokensOf(1);
  const at::Tensor expected = GradientOf(LossOf(plain_, tokens), plain_);
  const auto run = [&] {
    at::set_num_threads(1);
    for (int i = 0; i < 4; ++i) {
      ActivationScope saving = offload_->SaveActivations({{tokens}});
      const at::Tensor loss = LossOf(model_, tokens);
      saving.End();
      EXPECT_TRUE(GradientOf(loss, model_).equal(expected));
    }
  };
  std::thread other(run);
  run();
  other.join();
  EXPECT_EQ(Saved().tensors, 8 * kActivations);
  EXPECT_EQ(offload_->stats().hook.failures, 0) << offload_->error();
}

TEST_F(ActivationScopeTest, AGraphThatIsDroppedGivesItsPlacesBack) {
  Make(Alone());
  at::Tensor loss = Below(1);
  EXPECT_EQ(offload_->stats().hook.managed_tensors, kActivations);
  EXPECT_GT(UsedBelow(), 0);
  loss.reset();
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 0);
  EXPECT_EQ(UsedBelow(), 0);
}

TEST_F(ActivationScopeTest, WithoutActivationsItIsOfNothing) {
  Make(Third());
  LossOf(plain_, TokensOf(1)).backward();
  Below(1).backward();
  ExpectSameGradients();
  EXPECT_EQ(Saved().tensors, 0);
  EXPECT_EQ(offload_->stats().activation_limit_bytes, 0);
}

}  // namespace
}  // namespace terrace
