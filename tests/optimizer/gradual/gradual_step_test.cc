// A step whose gradients come one after another is the step that has them all,
// bit for bit, in whatever order they come and whatever is read ahead.
#include <algorithm>
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
using CallKind = MapRuntime::CallKind;

std::vector<int> InTurn(const Model& model) {
  std::vector<int> order(model.parameters().size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The addresses alone.
std::vector<ParameterData> Expected(Model& model) {
  std::vector<ParameterData> data = model.data();
  static float nothing = 0;  // where one without elements is
  for (ParameterData& each : data) {
    each.gradient = nullptr;
    if (each.parameter == nullptr) each.parameter = &nothing;
  }
  return data;
}

class Gradual : public testing::Test {
 protected:
  Gradual() { Make({.budget_bytes = 512 << 10}); }
  void Make(const MapRuntime::Behaviour& behaviour) {
    training_ =
        std::make_unique<Training>(ManyChunks(), SmallChunks(), 2, behaviour);
    model_ = &training_->model();
  }

  std::unique_ptr<GradualStep> Start(const std::vector<int>& order) {
    auto begun =
        training_->optimizer().StartGradual({}, Expected(*model_), order);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return *std::move(begun);
  }
  absl::Status StartStatus(const StepArguments& arguments,
                           const std::vector<int>& order) {
    return training_->optimizer()
        .StartGradual(arguments, Expected(*model_), order)
        .status();
  }
  absl::Status Supply(GradualStep& step, int parameter) {
    const ParameterData data = model_->data()[static_cast<size_t>(parameter)];
    return step.Supply(parameter, data.gradient, data.gradient_dtype);
  }
  // Those in `coming`, expected in another order.
  void StepBoth(int64_t number, const std::vector<int>& expected,
                const std::vector<int>& coming) {
    model_->DrawGradients(number);
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const auto index = static_cast<int>(i);
      model_->parameters()[i].has_gradient =
          std::find(coming.begin(), coming.end(), index) != coming.end();
    }
    training_->reference().Step({}, *model_);
    const std::unique_ptr<GradualStep> step = Start(expected);
    for (const int parameter : coming) {
      const absl::Status status = Supply(*step, parameter);
      ASSERT_TRUE(status.ok()) << status;
    }
    const absl::Status status = step->Finish(Soon());
    ASSERT_TRUE(status.ok()) << status;
    std::vector<int> stepped;
    step->TakeStepped(&stepped);
    EXPECT_THAT(stepped, testing::UnorderedElementsAreArray(coming));
    EXPECT_EQ(training_->reference().Difference(*model_), "");
  }

  std::unique_ptr<Training> training_;
  Model* model_ = nullptr;
};

TEST_F(Gradual, AnyOrderIsBitIdentical) {
  for (const std::optional<uint64_t> seed :
       {std::optional<uint64_t>(), std::optional<uint64_t>(99)}) {
    // Of three slots, and of all that a window has.
    for (const int64_t budget : {int64_t{256 << 10}, int64_t{8 << 20}}) {
      for (const int most_pushed : {1, 3, INT_MAX}) {
        SCOPED_TRACE(absl::StrCat("budget ", budget, ", ", most_pushed,
                                  " pushed, seed ", seed.value_or(0)));
        Make(
            {.budget_bytes = budget, .seed = seed, .most_pushed = most_pushed});
        std::mt19937 drawn(7);
        std::vector<int> coming = InTurn(*model_);
        for (int64_t number = 1; number <= 8; ++number) {
          std::vector<int> expected = coming;
          if (number > 2) std::shuffle(coming.begin(), coming.end(), drawn);
          std::vector<int> some = coming;
          if (number > 4) some.resize(some.size() - 3);
          StepBoth(number, expected, some);
        }
        StepBoth(9, InTurn(*model_), {});
        training_->ExpectSameState();
      }
    }
  }
}

TEST_F(Gradual, WithOrdinaryStepsInBetween) {
  for (int64_t number = 1; number <= 6; ++number) {
    if (number % 2 == 0) {
      for (ModelParameter& each : model_->parameters()) {
        each.has_gradient = true;
      }
      training_->StepBoth(number);
    } else {
      StepBoth(number, InTurn(*model_), {7, 6, 5, 4, 3, 2, 1, 0});
    }
  }
  training_->ExpectSameState();
}

TEST_F(Gradual, AChunkIsDoneBeforeTheOthersHaveTheirGradients) {
  model_->DrawGradients(1);
  const std::unique_ptr<GradualStep> step = Start({7, 0, 1, 2, 3, 4, 5, 6});
  // "d" has chunks that no other of its dtype but "b" is in.
  ASSERT_TRUE(Supply(*step, 1).ok());
  ASSERT_TRUE(Supply(*step, 4).ok());
  ASSERT_TRUE(Supply(*step, 3).ok());
  std::vector<int> stepped;
  const absl::Time deadline = Soon();
  while (stepped.size() < 3 && absl::Now() < deadline) {
    ASSERT_TRUE(step->Advance().ok());
    step->TakeStepped(&stepped);
  }
  EXPECT_THAT(stepped, testing::UnorderedElementsAre(1, 3, 4));
  for (const int parameter : {0, 2, 5, 6, 7}) {
    ASSERT_TRUE(Supply(*step, parameter).ok());
  }
  EXPECT_TRUE(step->Finish(Soon()).ok());
  training_->reference().Step({}, *model_);
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

TEST_F(Gradual, WhatItRefuses) {
  const std::vector<int> order = InTurn(*model_);
  const auto refused = [&](const StepArguments& arguments,
                           const std::vector<int>& given) {
    const absl::Status status = StartStatus(arguments, given);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused({.max_gradient_norm = 1}, order),
              HasSubstr("max_gradient_norm needs all gradients"));
  EXPECT_THAT(refused({.skip_nonfinite = true}, order),
              HasSubstr("skip_nonfinite needs"));
  EXPECT_THAT(refused({.loss_scale = 2}, order), HasSubstr("a loss scale"));
  const std::vector<GradientData> none;
  EXPECT_THAT(refused({.norm_gradients = none}, order),
              HasSubstr("norm_gradients"));
  EXPECT_THAT(refused({}, {0, 1, 2, 3, 4, 5, 6}),
              HasSubstr("lacks parameter 7 ('g')"));
  EXPECT_THAT(refused({}, {0, 1, 2, 3, 4, 5, 6, 6, 7}),
              HasSubstr("has parameter 6"));
  EXPECT_THAT(refused({}, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
              HasSubstr("has parameter 8"));
  EXPECT_THAT(refused({}, {-1}), HasSubstr("has parameter -1"));
  model_->DrawGradients(1);
  const absl::Status early =
      training_->optimizer().StartGradual({}, model_->data(), order).status();
  EXPECT_TRUE(absl::IsInvalidArgument(early)) << early;
  EXPECT_THAT(std::string(early.message()), HasSubstr("has a gradient before"));

  const std::unique_ptr<GradualStep> step = Start(order);
  const auto not_taken = [&](const absl::Status& status, const char* what) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  ASSERT_TRUE(Supply(*step, 0).ok());
  not_taken(Supply(*step, 0), "('a') has its gradient of this step");
  const float one = 0;
  not_taken(step->Supply(8, &one, DType::kFloat32), "parameter 8 of 8");
  not_taken(step->Supply(1, nullptr, DType::kFloat32), "without an address");
  not_taken(step->Supply(1, &one, DType::kFloat16), "another dtype");
  not_taken(
      step->Supply(1, reinterpret_cast<const char*>(&one) + 1, DType::kFloat32),
      "not aligned");
  for (const int parameter : {1, 2, 3, 4, 5, 6}) {
    ASSERT_TRUE(Supply(*step, parameter).ok());
  }
  ASSERT_TRUE(step->EndSupply().ok());
  not_taken(Supply(*step, 7), "takes no more gradients");
  model_->parameters()[7].has_gradient = false;
  training_->reference().Step({}, *model_);
  ASSERT_TRUE(step->Finish(Soon()).ok());
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

TEST_F(Gradual, NothingElseUsesTheStateMeanwhile) {
  model_->DrawGradients(1);
  OffloadedOptimizer& optimizer = training_->optimizer();
  const std::unique_ptr<GradualStep> step = Start(InTurn(*model_));
  for (const absl::Status& status :
       {training_->Step(), optimizer.Reset(Soon()),
        optimizer.OpenStateReader().status(),
        optimizer.AddParameters({{"h", DType::kFloat32, 3}}),
        StartStatus({}, InTurn(*model_))}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
  for (const int parameter : InTurn(*model_)) {
    ASSERT_TRUE(Supply(*step, parameter).ok());
  }
  ASSERT_TRUE(step->Finish(Soon()).ok());
  training_->reference().Step({}, *model_);
  EXPECT_EQ(training_->reference().Difference(*model_), "");
}

TEST_F(Gradual, EachCallThatFailsPoisons) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  for (int64_t failing = 0;; ++failing) {
    SCOPED_TRACE(absl::StrCat("call ", failing));
    Make({.budget_bytes = 512 << 10});
    StepBoth(1, InTurn(*model_), InTurn(*model_));
    model_->DrawGradients(2);
    const int64_t from = training_->calls();
    training_->map().set_fault([=](const MapRuntime::Call& call) {
      return call.index - from == failing
                 ? absl::UnknownError("path 1, offset 4096: EIO")
                 : absl::OkStatus();
    });
    auto begun = training_->optimizer().StartGradual({}, Expected(*model_),
                                                     InTurn(*model_));
    absl::Status status = begun.status();
    for (const int parameter : InTurn(*model_)) {
      if (status.ok()) status = Supply(**begun, parameter);
    }
    if (status.ok()) status = (*begun)->Finish(Soon());
    training_->map().set_fault(nullptr);
    if (status.ok()) {
      // A begin, a commit, and a push and a ready for each of the chunks.
      EXPECT_GE(failing, 2 + 2 * 8);
      break;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("offset 4096: EIO"));
    if (begun.ok()) {
      EXPECT_EQ((*begun)->Finish(Soon()), status);
      begun->reset();
    }
    for (const absl::Status& later :
         {training_->Step(), training_->optimizer().Reset(Soon()),
          training_->optimizer().OpenStateReader().status(),
          StartStatus({}, InTurn(*model_))}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
      EXPECT_THAT(std::string(later.message()),
                  HasSubstr("resume from the last checkpoint"));
    }
  }
}

TEST_F(Gradual, OneThatIsDroppedOrGivenUpOrLatePoisons) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  const auto expect_poison = [&](const char* why) {
    const absl::Status later = training_->Step();
    EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
    EXPECT_THAT(std::string(later.message()), HasSubstr(why));
  };
  model_->DrawGradients(1);
  {
    const std::unique_ptr<GradualStep> step = Start(InTurn(*model_));
    ASSERT_TRUE(Supply(*step, 0).ok());
  }
  expect_poison("it was not finished");

  Make({.budget_bytes = 512 << 10});
  model_->DrawGradients(1);
  {
    const std::unique_ptr<GradualStep> step = Start(InTurn(*model_));
    ASSERT_TRUE(Supply(*step, 5).ok());
    step->GiveUp("backward failed");
    EXPECT_TRUE(absl::IsCancelled(step->EndSupply()));
  }
  expect_poison("backward failed");

  Make({.budget_bytes = 512 << 10});
  model_->DrawGradients(1);
  {
    const std::unique_ptr<GradualStep> step = Start(InTurn(*model_));
    training_->map().set_stalled(true);
    ASSERT_TRUE(Supply(*step, 7).ok());
    const absl::Status late = step->Finish(absl::Now());
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    training_->map().set_stalled(false);
  }
  expect_poison("are missing at the deadline");
}

TEST_F(Gradual, AnOptimizerThatGoesInTheMiddle) {
  model_->DrawGradients(1);
  std::unique_ptr<GradualStep> step = Start(InTurn(*model_));
  ASSERT_TRUE(Supply(*step, 7).ok());
  step.reset();
  training_.reset();  // which expects that no pin is left
}

}  // namespace
}  // namespace terrace
