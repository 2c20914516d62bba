// A joined optimizer that steps in backward: gradients are freed as they are
// used, and none goes below.
#include <string>

#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class JoinedInBackwardTest : public JoinedTest,
                             public testing::WithParamInterface<double> {
 protected:
  void MakeInBackward() {
    MakeJoined(Share(GetParam()));
    const absl::Status set = optimizer_->SetStepInBackward(2);
    ASSERT_TRUE(set.ok()) << set;
  }
};
INSTANTIATE_TEST_SUITE_P(Budgets, JoinedInBackwardTest,
                         testing::Values(1e-6, 1.0 / 3, 1.0));

TEST_P(JoinedInBackwardTest, HasTheBitsOfTheSameInMemory) {
  MakeInBackward();
  StepBoth(1, 4);
  ExpectSameState();
  ExpectSameParameters();
  ExpectWithinBudget();
  EXPECT_EQ(optimizer_->offloaded().step(), 4);
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  ASSERT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(folder_.empty());
  ExpectSameParameters();
}

TEST_P(JoinedInBackwardTest, GradientsStayInMemoryAndEndWithTheirUse) {
  MakeInBackward();
  const int64_t alone = offload_->stats().hook.managed_tensors;
  at::manual_seed(1);
  const at::Tensor tokens = at::randint(0, kTokens, {7, 4});
  model_->forward(tokens).sum().backward();
  for (const at::Tensor& each : TrainedOf(model_)) {
    EXPECT_TRUE(each.grad().defined());
    EXPECT_FALSE(IsOffloaded(each.grad()));
  }
  EXPECT_EQ(offload_->stats().hook.managed_tensors, alone);
  model_->forward(tokens).sum().backward();
  for (const at::Tensor& each : TrainedOf(model_)) {
    EXPECT_FALSE(each.grad().defined());
  }
  EXPECT_TRUE(optimizer_->TryStep().ok());
}

TEST_P(JoinedInBackwardTest, ItIsSetWhereNoGradientIsBelow) {
  MakeJoined(Share(GetParam()));
  TwoPasses(model_, 1);
  const absl::Status status = optimizer_->SetStepInBackward(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  optimizer_->zero_grad();
  ASSERT_TRUE(optimizer_->SetStepInBackward(2).ok());
  StepBoth(2, 3);
  // And back: they go below again.
  ASSERT_TRUE(optimizer_->SetStepInBackward(0).ok());
  StepBoth(4, 5);
  TwoPasses(model_, 6);
  EXPECT_TRUE(IsOffloaded(TrainedOf(model_)[0].grad()));
  optimizer_->zero_grad();
  ExpectSameState();
  ExpectSameParameters();
}

TEST_P(JoinedInBackwardTest, CloseTellsOfHalfAStep) {
  MakeInBackward();
  StepBoth(1, 1);
  TwoPasses(model_, 2);
  const absl::Status closed = offload_->Close(Offload::AtClose::kRestore);
  EXPECT_FALSE(closed.ok());
  EXPECT_THAT(std::string(closed.message()),
              HasSubstr("in the middle of a step that backward began"));
  EXPECT_TRUE(absl::IsFailedPrecondition(optimizer_->TryStep()));
  for (const at::Tensor& each : model_->parameters()) {
    EXPECT_NE(each.const_data_ptr(), nullptr);
  }
}

}  // namespace
}  // namespace terrace
