// Steps that backward makes: the bits of those after it.
#include <torch/optim/adamw.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/step/in_backward/in_backward_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// By the passes of a step, and the parameters' dtype.
class InBackwardTest
    : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  int passes() const { return std::get<0>(GetParam()); }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Passes, InBackwardTest,
                         testing::Combine(testing::Values(1, 2, 3),
                                          testing::Values(at::kFloat,
                                                          at::kBFloat16)));

TEST_P(InBackwardTest, HasTheBitsOfStepsAfterBackward) {
  const auto ours = TrainedInBackward(passes(), dtype());
  const auto theirs = TrainedInBackward(0, dtype());
  for (int64_t step = 1; step <= 4; ++step) {
    StepAfter(*ours, passes(), step);
    StepAfter(*theirs, passes(), step);
    ExpectSame(*ours, *theirs);
    EXPECT_FALSE(HasGradients(ours->parameters()));
  }
}

TEST_P(InBackwardTest, IsNearLibTorchsOwn) {
  const auto ours = TrainedInBackward(passes(), dtype());
  const std::vector<at::Tensor> theirs =
      CopiesOf(ours->parameters(), at::kFloat);
  ::torch::optim::AdamW optimizer(Trained::Groups(theirs));
  for (int64_t step = 1; step <= 4; ++step) {
    StepAfter(*ours, passes(), step);
    optimizer.zero_grad();
    // The gradients of rounded parameters do not depend on them.
    for (int pass = 0; pass < passes(); ++pass) {
      std::vector<at::Tensor> rounded = CopiesOf(theirs, dtype());
      ASSERT_EQ(Pass(rounded, 10 * step + pass), "");
      for (size_t i = 0; i < theirs.size(); ++i) {
        at::Tensor& sum = theirs[i].mutable_grad();
        const at::Tensor given = rounded[i].grad();
        // As backward adds them up, in the parameters' dtype.
        sum = sum.defined()
                  ? (sum.to(dtype()) + given).to(at::kFloat).contiguous()
                  : given.to(at::kFloat).contiguous();
      }
    }
    optimizer.step();
  }
  const double allowed = dtype() == at::kFloat ? 1e-5 : 2e-2;
  for (size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_LE(Distance(ours->parameters()[i], theirs[i]), allowed) << i;
  }
}

uint32_t VersionOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

TEST_P(InBackwardTest, TheLastPassHasSteppedBeforeStep) {
  const auto ours = TrainedInBackward(passes(), dtype());
  const std::vector<at::Tensor>& parameters = ours->parameters();
  // How far a pass comes depends on what is there by then.
  bool has_changed = false;
  for (int64_t step = 1; step <= 200 && !has_changed; ++step) {
    std::vector<at::Tensor> before;
    std::vector<uint32_t> versions;
    for (const at::Tensor& each : parameters) {
      before.push_back(each.detach().clone());
      versions.push_back(VersionOf(each));
    }
    for (int pass = 0; pass < passes(); ++pass) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        ASSERT_TRUE(SameBits(parameters[i], before[i])) << i;
      }
      ASSERT_EQ(Pass(parameters, 10 * step + pass), "");
      EXPECT_EQ(HasGradients(parameters), pass + 1 < passes());
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      has_changed = has_changed || !SameBits(parameters[i], before[i]);
      // A graph that holds the old values must notice.
      EXPECT_GT(VersionOf(parameters[i]), versions[i]) << i;
    }
    ASSERT_TRUE(ours->optimizer().TryStep().ok());
  }
  EXPECT_TRUE(has_changed);
}

TEST(InBackward, FewerPassesAreSteppedByStep) {
  const auto ours = TrainedInBackward(3);
  const auto theirs = TrainedInBackward(0);
  for (int64_t step = 1; step <= 4; ++step) {
    const int passes = step % 2 == 0 ? 3 : 2;
    StepAfter(*ours, passes, step);
    StepAfter(*theirs, passes, step);
    ExpectSame(*ours, *theirs);
  }
}

TEST(InBackward, OnePassMoreThrowsAndChangesNothing) {
  const auto ours = TrainedInBackward(1);
  const auto theirs = TrainedInBackward(0);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  const std::string thrown = Pass(ours->parameters(), 11);
  EXPECT_THAT(thrown,
              HasSubstr("terrace: backward pass 2 since the last step"));
  ours->optimizer().zero_grad();
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  StepAfter(*theirs, 1, 1);
  ExpectSame(*ours, *theirs);
  StepAfter(*ours, 1, 2);
  StepAfter(*theirs, 1, 2);
  ExpectSame(*ours, *theirs);
}

TEST(InBackward, OptionsAreThoseOfTheLastPass) {
  const auto ours = TrainedInBackward(2);
  const auto theirs = TrainedInBackward(0);
  const auto set = [](Trained& trained, double rate) {
    trained.optimizer().param_groups()[1].options().set_lr(rate);
  };
  set(*ours, 0.5);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  set(*ours, 2e-3);
  ASSERT_EQ(Pass(ours->parameters(), 11), "");
  set(*ours, 0.5);
  const absl::Status changed = ours->optimizer().TryStep();
  EXPECT_TRUE(absl::IsFailedPrecondition(changed)) << changed;
  EXPECT_THAT(std::string(changed.message()), HasSubstr("set them back"));
  set(*ours, 2e-3);
  const absl::Status status = ours->optimizer().TryStep();
  EXPECT_TRUE(status.ok()) << status;
  set(*theirs, 2e-3);
  StepAfter(*theirs, 2, 1);
  ExpectSame(*ours, *theirs);
}

TEST(InBackward, WhatWasSteppedMayHaveNoOtherGradient) {
  const auto ours = TrainedInBackward(1);
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  const at::Tensor& parameter = ours->parameters()[4];
  parameter.mutable_grad() = at::ones_like(parameter);
  const absl::Status status = ours->optimizer().TryStep();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("parameter 4 has another gradient"));
  parameter.mutable_grad().reset();
  EXPECT_TRUE(ours->optimizer().TryStep().ok());
}

// Frozen ones, those that a pass does not reach, and one that comes later.
TEST(InBackward, WhatHasNoGradientStaysAndWhatIsNewIsSteppedToo) {
  const auto ours = TrainedInBackward(1);
  const auto theirs = TrainedInBackward(0);
  for (Trained* const each : {ours.get(), theirs.get()}) {
    each->parameters()[0].set_requires_grad(false);
    StepAfter(*each, 1, 1);
    each->parameters()[0].set_requires_grad(true);
    at::manual_seed(77);
    at::Tensor added = at::randn({33, 5}).set_requires_grad(true);
    each->optimizer().add_parameters({added});
    each->parameters().push_back(added);
    each->parameters()[1].set_requires_grad(false);
    StepAfter(*each, 1, 2);
    StepAfter(*each, 1, 3);
  }
  ours->ExpectParametersOf(*theirs);
  EXPECT_EQ(theirs->optimizer().offloaded().step(), 3);
  EXPECT_EQ(ours->optimizer().offloaded().step(), 3);
  const auto state = ours->optimizer().StateOf(ours->parameters().back());
  const auto expected =
      theirs->optimizer().StateOf(theirs->parameters().back());
  ASSERT_TRUE(state.ok() && expected.ok());
  EXPECT_EQ(state->step, expected->step);
  EXPECT_TRUE(SameBits(state->exp_avg, expected->exp_avg));
}

// A graph that holds values of before the end of the step must notice.
TEST(InBackward, ValuesReadBeforeStepEndsAreOld) {
  const auto ours = TrainedInBackward(1);
  const at::Tensor& parameter = ours->parameters()[4];
  ASSERT_EQ(Pass(ours->parameters(), 10), "");
  const at::Tensor read = (parameter * parameter).sum();
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  try {
    read.backward();
    FAIL() << "the graph holds what was written";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("modified by an inplace operation"));
  }
}

// What another optimizer steps now is no pass of this one's.
TEST(InBackward, WhatHasLeftTheGroupsIsNotFollowed) {
  const auto ours = TrainedInBackward(1);
  StepAfter(*ours, 1, 1);
  auto& group = ours->optimizer().param_groups()[0].params();
  const at::Tensor left = group[0];
  group.erase(group.begin());
  StepAfter(*ours, 1, 2);
  left.mutable_grad().reset();
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_EQ(Pass({left}, 30 + pass), "");
  }
  EXPECT_TRUE(left.grad().defined());
  EXPECT_TRUE(ours->optimizer().StateOf(ours->parameters()[4]).ok());
  left.mutable_grad().reset();
  left.set_requires_grad(false);
  StepAfter(*ours, 1, 4);
}

TEST(InBackward, IsSetBetweenSteps) {
  const auto ours = TrainedInBackward(2);
  const auto theirs = TrainedInBackward(0);
  int64_t step = 0;
  for (const int passes : {2, 1, 0, 1}) {
    const absl::Status set = ours->optimizer().SetStepInBackward(passes);
    ASSERT_TRUE(set.ok()) << set;
    StepAfter(*ours, 2 - passes % 2, ++step);
    StepAfter(*theirs, 2 - passes % 2, step);
    ExpectSame(*ours, *theirs);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ours->optimizer().SetStepInBackward(-1)));
}

TEST(InBackward, HalfAStepIsNeitherReadNorSavedNorReplaced) {
  const auto ours = TrainedInBackward(1);
  StepAfter(*ours, 1, 1);
  const std::string saved = ours->Save();
  ASSERT_EQ(Pass(ours->parameters(), 20), "");
  const auto expect_refused = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("in the middle of a step that backward began"));
  };
  expect_refused(ours->optimizer().StateOf(ours->parameters()[0]).status());
  expect_refused(ours->optimizer().SetStepInBackward(0));
  EXPECT_THROW(ours->Save(), c10::Error);
  EXPECT_THROW(ours->Load(saved), c10::Error);
  ASSERT_TRUE(ours->optimizer().TryStep().ok());
  ours->Load(ours->Save());
  const auto theirs = TrainedInBackward(0);
  StepAfter(*theirs, 1, 1);
  StepAfter(*theirs, 1, 2);
  ExpectSame(*ours, *theirs);
}

TEST(InBackward, OverlapHasNothingToDo) {
  const auto ours = TrainedInBackward(1);
  ours->optimizer().set_overlap(true);
  const auto theirs = TrainedInBackward(0);
  for (int64_t step = 1; step <= 2; ++step) {
    StepAfter(*ours, 1, step);
    StepAfter(*theirs, 1, step);
  }
  ExpectSame(*ours, *theirs);
}

}  // namespace
}  // namespace terrace
