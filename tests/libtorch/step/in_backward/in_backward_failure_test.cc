// Steps in backward that fail: nothing hangs, and whatever needs whole
// parameters says why from then on.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/libtorch/step/in_backward/in_backward_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string SavedOfAnother() {
  const auto other = TrainedInBackward(0);
  StepAfter(*other, 1, 1);
  return other->Save();
}

// Everything is refused, with this and what to do.
void ExpectFailed(Trained& trained, const std::string& why) {
  const auto told = AllOf(HasSubstr(why), HasSubstr("stepped in part"),
                          HasSubstr("resume from the last checkpoint"));
  EXPECT_THAT(std::string(trained.optimizer().TryStep().message()), told);
  EXPECT_THAT(std::string(trained.optimizer()
                              .StateOf(trained.parameters()[0])
                              .status()
                              .message()),
              told);
  EXPECT_THAT(std::string(trained.optimizer().SetStepInBackward(0).message()),
              told);
  EXPECT_THAT(Pass(trained.parameters(), 99), told);
  EXPECT_THROW(trained.Save(), c10::Error);
  EXPECT_THROW(trained.Load(SavedOfAnother()), c10::Error);
}

TEST(InBackwardFailure, EachFaultEndsTheStepAndIsToldFromThenOn) {
  int failures = 0;  // in backward, or in the step: as far as each comes
  for (int64_t call = 0;; ++call) {
    SCOPED_TRACE(absl::StrCat("call ", call));
    const auto ours = TrainedInBackward(2);
    StepAfter(*ours, 2, 1);
    ours->Fail(call);
    ASSERT_EQ(Pass(ours->parameters(), 20), "");
    const std::string thrown = Pass(ours->parameters(), 21);
    const absl::Status status = ours->optimizer().TryStep();
    if (status.ok()) {
      EXPECT_EQ(thrown, "");
      break;
    }
    ours->Mend();
    ++failures;
    if (thrown.empty()) {
      EXPECT_TRUE(absl::IsUnknown(status)) << status;
    } else {
      EXPECT_THAT(thrown, AllOf(StartsWith("terrace: "),
                                HasSubstr("read failed: path 1: EIO")));
    }
    ExpectFailed(*ours, "read failed: path 1: EIO");
    if (HasFailure()) return;
  }
  EXPECT_GT(failures, 4);
}

// The hook is of a parameter whose gradient comes late.
TEST(InBackwardFailure, APassThatBreaksAfterItHasSteppedHasFailedTheStep) {
  const auto ours = TrainedInBackward(1);
  StepAfter(*ours, 1, 1);
  const unsigned hook =
      ours->parameters()[0].register_hook([](const at::Tensor&) -> at::Tensor {
        TORCH_CHECK(false, "breaks here");
      });
  EXPECT_THAT(Pass(ours->parameters(), 20), HasSubstr("breaks here"));
  ours->parameters()[0].remove_hook(hook);
  ExpectFailed(*ours, "a backward pass failed after it had stepped");
}

TEST(InBackwardFailure, APassThatBreaksBeforeCountsForNothing) {
  const auto ours = TrainedInBackward(2);
  const auto theirs = TrainedInBackward(0);
  const unsigned hook =
      ours->parameters()[0].register_hook([](const at::Tensor&) -> at::Tensor {
        TORCH_CHECK(false, "breaks here");
      });
  EXPECT_THAT(Pass(ours->parameters(), 10), HasSubstr("breaks here"));
  ours->parameters()[0].remove_hook(hook);
  StepAfter(*ours, 2, 1);
  StepAfter(*theirs, 2, 1);
  ExpectSame(*ours, *theirs);
}

// It began after backward, and goes on there.
TEST(InBackwardFailure, AStepThatIsIncompleteIsNotBackwards) {
  const auto ours = TrainedInBackward(2);
  const auto theirs = TrainedInBackward(0);
  StepAfter(*ours, 2, 1);
  StepAfter(*theirs, 2, 1);
  ASSERT_EQ(Pass(ours->parameters(), 20), "");
  theirs->optimizer().zero_grad();
  ASSERT_EQ(Pass(theirs->parameters(), 20), "");
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : ours->parameters()) {
    gradients.push_back(each.grad().clone());
  }
  ours->Fail(3);
  EXPECT_FALSE(ours->optimizer().TryStep().ok());
  ASSERT_TRUE(ours->optimizer().offloaded().incomplete());
  ours->Mend();
  EXPECT_THAT(Pass(ours->parameters(), 21),
              HasSubstr("a step is incomplete; call step() again"));
  for (size_t i = 0; i < gradients.size(); ++i) {
    ours->parameters()[i].mutable_grad() = gradients[i];
  }
  const absl::Status status = ours->optimizer().TryStep();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(theirs->optimizer().TryStep().ok());
  ExpectSame(*ours, *theirs);
  StepAfter(*ours, 2, 3);
  StepAfter(*theirs, 2, 3);
  ExpectSame(*ours, *theirs);
}

// What is left for step() fails once the rest is stepped.
TEST(InBackwardFailure, WhatIsLeftForStepMayFailAlone) {
  const auto ours = TrainedInBackward(1);
  const at::Tensor& frozen = ours->parameters()[0];
  frozen.set_requires_grad(false);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  frozen.mutable_grad() = at::zeros_like(frozen).to_sparse();
  EXPECT_TRUE(absl::IsInvalidArgument(ours->optimizer().TryStep()));
  EXPECT_EQ(ours->optimizer().offloaded().step(), 1);
  frozen.mutable_grad().reset();
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  EXPECT_EQ(ours->optimizer().offloaded().step(), 1);  // there is nothing left
  ASSERT_EQ(Pass(ours->parameters(), 20), "");
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  EXPECT_EQ(ours->optimizer().offloaded().step(), 2);
}

TEST(InBackwardFailure, AForkedChildHasNoneOfIt) {
  const auto ours = TrainedInBackward(1);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  EXPECT_TRUE(InChild([&] {
    const bool is_refused = !ours->optimizer().TryStep().ok();
    LossOf(ours->parameters(), 11).backward();
    const bool has_gradients = HasGradients(ours->parameters());
    ours->DestroyOptimizer();
    return is_refused && has_gradients;
  }));
  EXPECT_TRUE(ours->optimizer().TryStep().ok());
}

TEST(InBackwardFailure, GradientsThatAreGivenUpAreCountedAnew) {
  const auto ours = TrainedInBackward(2);
  const auto theirs = TrainedInBackward(0);
  ASSERT_EQ(Pass(ours->parameters(), 7), "");
  ours->optimizer().zero_grad();
  ASSERT_TRUE(ours->optimizer().SetStepInBackward(2).ok());
  StepAfter(*ours, 2, 1);
  StepAfter(*theirs, 2, 1);
  ExpectSame(*ours, *theirs);
}

TEST(InBackwardFailure, WhatNeedsAllGradientsFirstIsRefused) {
  OptimizerOptions clips = SmallChunks();
  clips.max_gradient_norm = 1;
  Trained clipped(/*overlap=*/false, at::kFloat, clips);
  EXPECT_TRUE(
      absl::IsInvalidArgument(clipped.optimizer().SetStepInBackward(1)));

  const auto ours = TrainedInBackward(1);
  EXPECT_TRUE(
      absl::IsUnimplemented(ours->optimizer().TryStep({.loss_scale = 8})));
  StepAfter(*ours, 1, 1);  // nothing had begun
  ASSERT_EQ(Pass(ours->parameters(), 20), "");
  EXPECT_TRUE(absl::IsUnimplemented(
      ours->optimizer().TryStep({.max_gradient_norm = 1})));
  ExpectFailed(*ours, "neither clips nor skips");
}

TEST(InBackwardFailure, AGradientThatCannotBeSteppedFailsIt) {
  const auto ours = TrainedInBackward(1, at::kBFloat16);
  const at::Tensor& parameter = ours->parameters()[4];
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  parameter.mutable_grad() = at::zeros(parameter.sizes(), at::kDouble);
  EXPECT_THAT(Pass(ours->parameters(), 20),
              AllOf(HasSubstr("the gradient of parameter 4"),
                    HasSubstr("resume from the last checkpoint")));
}

TEST(InBackwardFailure, AnOptimizerMayEndInTheMiddleOfAStep) {
  const auto ours = TrainedInBackward(1);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  ours->DestroyOptimizer();
  // Gradients are autograd's alone again.
  ASSERT_EQ(Pass(ours->parameters(), 11), "");
  EXPECT_TRUE(HasGradients(ours->parameters()));
}

}  // namespace
}  // namespace terrace
