// A step whose updates go on after it has begun is the step that blocks, bit
// for bit, in whatever order it goes and whatever fails.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizer/gradual/many_chunks.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::vector<int> WithGradient(const Model& model) {
  std::vector<int> found;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    if (model.parameters()[i].has_gradient)
      found.push_back(static_cast<int>(i));
  }
  return found;
}

class Late : public testing::Test {
 protected:
  Late() { Make({.budget_bytes = 512 << 10}); }
  void Make(const MapRuntime::Behaviour& behaviour) {
    training_ =
        std::make_unique<Training>(ManyChunks(), SmallChunks(), 2, behaviour);
    model_ = &training_->model();
  }

  absl::StatusOr<std::unique_ptr<LateStep>> Start(
      const StepArguments& arguments, const std::vector<int>& order,
      absl::Time deadline = Soon()) {
    return training_->optimizer().StartLate(arguments, model_->data(), order,
                                            deadline);
  }
  // To its end; the parameters in the order in which they were stepped.
  static absl::Status End(LateStep& step, std::vector<int>* stepped) {
    while (!step.Advance()) {
      step.TakeStepped(stepped);
      step.Wait(Soon());
    }
    step.TakeStepped(stepped);
    return step.result();
  }
  static ptrdiff_t PlaceOf(int parameter, const std::vector<int>& stepped) {
    return std::find(stepped.begin(), stepped.end(), parameter) -
           stepped.begin();
  }
  void StepBoth(int64_t number, const StepArguments& arguments,
                const std::vector<int>& order) {
    model_->DrawGradients(number);
    training_->reference().Step(arguments, *model_);
    auto step = Start(arguments, order);
    ASSERT_TRUE(step.ok()) << step.status();
    std::vector<int> stepped;
    const absl::Status status = End(**step, &stepped);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(stepped,
                testing::UnorderedElementsAreArray(WithGradient(*model_)));
    EXPECT_EQ(training_->reference().Difference(*model_), "");
  }

  std::unique_ptr<Training> training_;
  Model* model_ = nullptr;
};

TEST_F(Late, AnyOrderIsBitIdentical) {
  for (const int64_t budget : {int64_t{256 << 10}, int64_t{8 << 20}}) {
    for (const int most_pushed : {1, 3, INT_MAX}) {
      SCOPED_TRACE(absl::StrCat("budget ", budget, ", ", most_pushed));
      Make({.budget_bytes = budget, .seed = 99, .most_pushed = most_pushed});
      std::mt19937 drawn(7);
      std::vector<int> order(model_->parameters().size());
      std::iota(order.begin(), order.end(), 0);
      for (int64_t number = 1; number <= 6; ++number) {
        std::shuffle(order.begin(), order.end(), drawn);
        std::vector<int> some = order;
        if (number > 3) some.resize(3);
        const bool clips = number % 2 == 0;
        StepBoth(number,
                 {.loss_scale = clips ? 2.0 : 1.0,
                  .max_gradient_norm = clips ? 0.25 : 0.0},
                 some);
      }
      training_->StepBoth(7);
      StepBoth(8, {}, {});
      training_->ExpectSameState();
    }
  }
}

TEST_F(Late, WhatIsFirstInTheOrderIsSteppedFirst) {
  Make({.budget_bytes = 256 << 10, .most_pushed = 1});
  model_->DrawGradients(1);
  auto step = Start({}, {7, 5});
  ASSERT_TRUE(step.ok()) << step.status();
  std::vector<int> stepped;
  ASSERT_TRUE(End(**step, &stepped).ok());
  for (const int other : {0, 1, 2, 4}) {
    EXPECT_LT(PlaceOf(7, stepped), PlaceOf(other, stepped)) << other;
  }
}

TEST_F(Late, WhatIsHastenedGoesBeforeTheOthers) {
  Make({.budget_bytes = 256 << 10, .most_pushed = 1});
  model_->DrawGradients(1);
  auto step = Start({}, {0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(step.ok()) << step.status();
  (*step)->Hasten(7);
  (*step)->Hasten(3);  // is in no chunk
  std::vector<int> stepped;
  ASSERT_TRUE(End(**step, &stepped).ok());
  EXPECT_LT(PlaceOf(7, stepped), PlaceOf(4, stepped));
  training_->reference().Step({}, *model_);
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

TEST_F(Late, OneThatIsSkippedHasEndedAtOnce) {
  model_->DrawGradients(1, std::numeric_limits<float>::infinity());
  auto step = Start({.skip_nonfinite = true}, {});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_TRUE((*step)->Advance());
  EXPECT_TRUE((*step)->result().ok());
  EXPECT_TRUE(training_->optimizer().last_report().skipped);
}

TEST_F(Late, WhatItRefuses) {
  model_->DrawGradients(1);
  for (const int bad : {-1, 8}) {
    const absl::Status status = Start({}, {0, bad}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("has parameter ", bad, " of 8")));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Start({.loss_scale = -1}, {}).status()));
  auto step = Start({}, {});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(Start({}, {}).status()));
  std::vector<int> stepped;
  EXPECT_TRUE(End(**step, &stepped).ok());
}

TEST_F(Late, EachCallThatFailsLeavesItIncompleteAndAnotherGoesOn) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  for (int64_t failing = 0;; ++failing) {
    SCOPED_TRACE(absl::StrCat("call ", failing));
    Make({.budget_bytes = 512 << 10});
    StepBoth(1, {}, {5, 4});
    model_->DrawGradients(2);
    training_->reference().Step({.max_gradient_norm = 0.5}, *model_);
    const int64_t from = training_->calls();
    training_->map().set_fault([=](const MapRuntime::Call& call) {
      return call.index - from == failing
                 ? absl::UnknownError("path 1, offset 4096: EIO")
                 : absl::OkStatus();
    });
    auto step = Start({.max_gradient_norm = 0.5}, {7, 1});
    ASSERT_TRUE(step.ok()) << step.status();
    std::vector<int> stepped;
    const absl::Status status = End(**step, &stepped);
    training_->map().set_fault(nullptr);
    if (status.ok()) {
      EXPECT_GE(failing, 2 + 2 * 8);  // as of a gradual step
      break;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("offset 4096: EIO"));
    EXPECT_TRUE(training_->optimizer().incomplete());
    // Those that were used are not looked at any more.
    for (const int parameter : stepped) {
      Values& used =
          model_->parameters()[static_cast<size_t>(parameter)].gradient;
      used = Values(used.dtype(), used.count());
    }
    auto again = Start({.max_gradient_norm = 0.5}, {1, 7});
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::Status ended = End(**again, &stepped);
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_THAT(stepped,
                testing::UnorderedElementsAreArray(WithGradient(*model_)));
    EXPECT_EQ(training_->reference().Difference(*model_), "");
    training_->ExpectSameState();
  }
}

TEST_F(Late, AWaitThatEndsBeforeTheDeadlineLeavesItRunning) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  model_->DrawGradients(1);
  training_->reference().Step({}, *model_);
  training_->map().set_stalled(true);
  auto step = Start({}, {});
  ASSERT_TRUE(step.ok()) << step.status();
  for (int look = 0; look < 3; ++look) {
    EXPECT_FALSE((*step)->Advance());
    (*step)->Wait(absl::Now() + absl::Milliseconds(1));
  }
  EXPECT_FALSE((*step)->Advance());
  training_->map().set_stalled(false);
  std::vector<int> stepped;
  const absl::Status status = End(**step, &stepped);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

TEST_F(Late, OneAtItsDeadlineIsIncomplete) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  model_->DrawGradients(1);
  training_->map().set_stalled(true);
  auto step = Start({}, {}, absl::Now());
  ASSERT_TRUE(step.ok()) << step.status();
  while (!(*step)->Advance()) (*step)->Wait(Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded((*step)->result())) << (*step)->result();
  training_->map().set_stalled(false);
  const absl::Status blocking = training_->Step();
  EXPECT_TRUE(absl::IsFailedPrecondition(blocking)) << blocking;
  auto again = Start({}, {});
  ASSERT_TRUE(again.ok()) << again.status();
  std::vector<int> stepped;
  const absl::Status status = End(**again, &stepped);
  EXPECT_TRUE(status.ok()) << status;
  training_->reference().Step({}, *model_);
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

}  // namespace
}  // namespace terrace
