// What a failed step leaves behind, and how the same step ends it.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using CallKind = MapRuntime::CallKind;

absl::Status DiskError() {
  return absl::UnknownError("read failed: path 1, offset 4096: EIO");
}

// Nine chunks of the smallest size; sizes off every grid.
Model NineChunks() {
  return Model::Of({{"prime", DType::kFloat32, 16411},
                    {"half", DType::kBFloat16, 928},
                    {"one", DType::kFloat32, 1},
                    {"none", DType::kFloat32, 0},
                    {"half_prime", DType::kBFloat16, 12011}},
                   21);
}

class Failure : public testing::Test {
 protected:
  Failure() : model_(NineChunks()) { Make({}); }

  // Replaces everything.
  void Make(std::optional<uint64_t> seed) {
    optimizer_.reset();
    if (runtime_ != nullptr) ExpectClean();
    OptimizerOptions options;
    options.chunk_bytes = 64 << 10;
    options.max_gradient_norm = 1;
    model_ = NineChunks();
    reference_ = std::make_unique<ReferenceOptimizer>(model_, options);
    runtime_ = std::make_unique<MapRuntime>(
        MapRuntime::Behaviour{.budget_bytes = 512 << 10, .seed = seed},
        SystemClock(), *executor_);
    optimizer_ =
        *OffloadedOptimizer::Create(*runtime_, model_.specs(), options);
  }
  ~Failure() override { ExpectClean(); }

  void ExpectClean() {
    EXPECT_THAT(runtime_->violations(), testing::IsEmpty());
    EXPECT_EQ(runtime_->pins(), 0);
  }
  // The index-th call from now fails with `status`.
  void FailCall(int64_t index, absl::Status status) {
    const int64_t from = runtime_->calls();
    runtime_->set_fault([=](const MapRuntime::Call& call) {
      return call.index - from == index ? status : absl::OkStatus();
    });
  }
  void FailTensor(int64_t tensor, absl::Status status) {
    runtime_->set_fault([=](const MapRuntime::Call& call) {
      return call.kind == CallKind::kReady && call.tensor.value == tensor
                 ? status
                 : absl::OkStatus();
    });
  }
  absl::Status Step(const StepArguments& arguments = {}) {
    return optimizer_->Step(arguments, model_.data(), Soon());
  }
  void StepBoth(int64_t step) {
    model_.DrawGradients(step);
    reference_->Step({}, model_);
    const absl::Status status = Step();
    ASSERT_TRUE(status.ok()) << status;
  }
  void ExpectSame() {
    EXPECT_EQ(reference_->Difference(model_), "");
    EXPECT_EQ(reference_->StateDifference(*optimizer_), "");
  }

  std::unique_ptr<Executor> executor_ = *MakePoolExecutor(2, {});
  Model model_;
  std::unique_ptr<ReferenceOptimizer> reference_;
  std::unique_ptr<MapRuntime> runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST_F(Failure, EachCallInTurnThenTheSameStepIsBitIdentical) {
  for (const std::optional<uint64_t> seed :
       {std::optional<uint64_t>(), std::optional<uint64_t>(99)}) {
    for (int64_t failing_step : {1, 2}) {
      for (int64_t call = 0;; ++call) {
        SCOPED_TRACE(absl::StrCat("step ", failing_step, ", call ", call));
        Make(seed);
        for (int64_t step = 1; step < failing_step; ++step) StepBoth(step);
        model_.DrawGradients(failing_step);
        reference_->Step({}, model_);
        FailCall(call, DiskError());
        const absl::Status status = Step();
        runtime_->set_fault(nullptr);
        if (status.ok()) {
          // The sweep is past the last call: a begin, a commit, and a push
          // and a ready for each of at least eight chunks.
          EXPECT_GE(call, 2 + 2 * 8);
          ExpectSame();
          break;
        }
        EXPECT_EQ(status.code(), DiskError().code());
        EXPECT_THAT(std::string(status.message()),
                    testing::HasSubstr("path 1, offset 4096: EIO"));
        EXPECT_TRUE(optimizer_->incomplete());
        EXPECT_EQ(optimizer_->step(), failing_step - 1);
        const absl::Status again = Step();
        ASSERT_TRUE(again.ok()) << again;
        EXPECT_FALSE(optimizer_->incomplete());
        EXPECT_EQ(optimizer_->step(), failing_step);
        StepBoth(failing_step + 1);
        ExpectSame();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(Failure, WithGroupsTheSameStepFinishesWithTheirOptions) {
  for (size_t i : {1u, 4u}) model_.parameters()[i].spec.group = 1;
  ReferenceOptimizer reference(model_, {.max_gradient_norm = 1});
  optimizer_.reset();
  OptimizerOptions options = SmallChunks();
  options.name = "grouped";
  optimizer_ = *OffloadedOptimizer::Create(*runtime_, model_.specs(), options);
  for (int step = 1; step <= 4; ++step) {
    SCOPED_TRACE(step);
    // Each in its own place: what the optimizer keeps must be a copy.
    const auto groups = std::make_unique<std::vector<AdamOptions>>(2);
    (*groups)[0].learning_rate = 0.01 * step;
    (*groups)[1].beta1 = 0.5 / step;
    const StepArguments arguments{.groups = *groups, .max_gradient_norm = 1.0};
    model_.parameters()[1].has_gradient = step != 2;
    model_.DrawGradients(step);
    reference.Step(arguments, model_);
    FailCall(3 * step, DiskError());
    const auto failing = std::make_unique<std::vector<AdamOptions>>(*groups);
    EXPECT_FALSE(Step({.groups = *failing, .max_gradient_norm = 1.0}).ok());
    runtime_->set_fault(nullptr);
    const absl::Status again = Step(arguments);
    ASSERT_TRUE(again.ok()) << again;
    EXPECT_EQ(reference.Difference(model_), "");
  }
  EXPECT_EQ(reference.StateDifference(*optimizer_), "");
}

TEST_F(Failure, ChunksThatSucceededAreNotUpdatedAgain) {
  StepBoth(1);
  model_.DrawGradients(2);
  reference_->Step({}, model_);
  FailTensor(3, DiskError());
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(Step().code(), DiskError().code());
  }
  const auto chunks = static_cast<int64_t>(runtime_->tensors().size());
  for (int64_t i = 0; i < chunks; ++i) {
    EXPECT_EQ(runtime_->writes({i}), i == 3 ? 1 : 2) << i;
  }
  runtime_->set_fault(nullptr);
  ASSERT_TRUE(Step().ok());
  ExpectSame();
}

TEST_F(Failure, AFailedCommitLeavesNothingToUpdate) {
  runtime_->set_fault([](const MapRuntime::Call& call) {
    return call.kind == CallKind::kCommit ? DiskError() : absl::OkStatus();
  });
  model_.DrawGradients(1);
  reference_->Step({}, model_);
  EXPECT_EQ(Step().code(), DiskError().code());
  EXPECT_TRUE(optimizer_->incomplete());
  runtime_->set_fault(nullptr);
  ASSERT_TRUE(Step().ok());
  for (size_t i = 0; i < runtime_->tensors().size(); ++i) {
    EXPECT_EQ(runtime_->writes({static_cast<int64_t>(i)}), 1);
  }
  ExpectSame();
}

// The queue says it to the step that begins next, and tries it again.
TEST_F(Failure, WhatFailedSinceAnAttemptThatFailedIsNoFailureOfTheNext) {
  StepBoth(1);
  model_.DrawGradients(2);
  reference_->Step({}, model_);
  FailTensor(3, DiskError());
  ASSERT_FALSE(Step().ok());
  int begun = 0;
  runtime_->set_fault([&begun](const MapRuntime::Call& call) {
    if (call.kind == CallKind::kBegin) ++begun;
    const bool is_told = call.kind == CallKind::kCommit && begun == 1;
    return is_told ? DiskError() : absl::OkStatus();
  });
  const absl::Status again = Step();
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_FALSE(optimizer_->incomplete());
  runtime_->set_fault(nullptr);
  ExpectSame();
}

TEST_F(Failure, AnIncompleteStepTakesNothingButItself) {
  StepBoth(1);
  model_.DrawGradients(2);
  reference_->Step({}, model_);
  FailTensor(3, DiskError());
  ASSERT_FALSE(Step().ok());
  runtime_->set_fault(nullptr);
  const auto refused = [this](const StepArguments& arguments) {
    const int64_t calls = runtime_->calls();
    const absl::Status status = Step(arguments);
    EXPECT_EQ(runtime_->calls(), calls);
    EXPECT_TRUE(optimizer_->incomplete());
    return absl::IsFailedPrecondition(status);
  };
  EXPECT_TRUE(refused({.learning_rate = 0.5}));
  EXPECT_TRUE(refused({.loss_scale = 2}));
  EXPECT_TRUE(refused({.max_gradient_norm = 0.5}));
  EXPECT_TRUE(refused({.skip_nonfinite = true}));
  const std::vector<AdamOptions> two(2);
  EXPECT_TRUE(refused({.groups = two}));
  for (const AdamOptions& other :
       {AdamOptions{.learning_rate = 2e-3}, AdamOptions{.beta1 = 0.8},
        AdamOptions{.beta2 = 0.99}, AdamOptions{.epsilon = 1e-7},
        AdamOptions{.weight_decay = 0}, AdamOptions{.decoupled_decay = false},
        AdamOptions{.bias_correction = false}}) {
    EXPECT_TRUE(refused({.groups = {&other, 1}}));
  }
  // One bit of a gradient: the sign of one element, which no norm shows.
  for (size_t parameter : {0u, 1u, 2u, 4u}) {
    Values& gradient = model_.parameters()[parameter].gradient;
    const float before = gradient.Get(gradient.count() - 1);
    gradient.Set(gradient.count() - 1, -before);
    EXPECT_TRUE(refused({})) << parameter;
    gradient.Set(gradient.count() - 1, before);
  }
  model_.parameters()[4].has_gradient = false;
  EXPECT_TRUE(refused({}));
  model_.parameters()[4].has_gradient = true;
  std::vector<ParameterData> moved = model_.data();
  std::vector<float> elsewhere = model_.parameters()[0].values.fp32();
  moved[0].parameter = elsewhere.data();
  EXPECT_TRUE(absl::IsFailedPrecondition(optimizer_->Step({}, moved, Soon())));
  // The options, said aloud, are the same options.
  const std::vector<AdamOptions> same(1);
  ASSERT_TRUE(Step({.learning_rate = AdamOptions{}.learning_rate,
                    .groups = same,
                    .max_gradient_norm = 1.0,
                    .skip_nonfinite = false})
                  .ok());
  ExpectSame();
}

TEST_F(Failure, DataLossPoisonsForEver) {
  StepBoth(1);
  model_.DrawGradients(2);
  FailTensor(2, absl::DataLossError("checksum of path 0, offset 8192"));
  EXPECT_TRUE(absl::IsDataLoss(Step()));
  runtime_->set_fault(nullptr);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = Step();
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("path 0, offset 8192"));
  }
  EXPECT_TRUE(absl::IsDataLoss(optimizer_->Start({}, model_.data())));
  std::vector<float> out(1);
  EXPECT_TRUE(absl::IsDataLoss(
      optimizer_->ReadState(2, OffloadedOptimizer::StateKind::kFirstMoment,
                            absl::MakeSpan(out), Soon())));
}

TEST_F(Failure, DataLossIsToldEvenIfAnotherErrorCameFirst) {
  StepBoth(1);
  model_.DrawGradients(2);
  runtime_->set_fault([](const MapRuntime::Call& call) {
    if (call.kind != CallKind::kReady) return absl::OkStatus();
    if (call.tensor.value == 1) return DiskError();
    if (call.tensor.value == 5) return absl::DataLossError("gone");
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsDataLoss(Step()));
  runtime_->set_fault(nullptr);
  EXPECT_TRUE(absl::IsDataLoss(Step()));
}

TEST_F(Failure, ADeadlineLeavesTheStepToBeFinished) {
  StepBoth(1);
  model_.DrawGradients(2);
  reference_->Step({}, model_);
  int64_t ready = 0;
  runtime_->set_fault([&](const MapRuntime::Call& call) {
    if (call.kind == CallKind::kReady && ++ready == 4) {
      runtime_->set_stalled(true);
    }
    return absl::OkStatus();
  });
  const absl::Status status = Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(optimizer_->incomplete());
  // Its requests are still under way, so reading the state must wait.
  std::vector<float> out(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      optimizer_->ReadState(2, OffloadedOptimizer::StateKind::kFirstMoment,
                            absl::MakeSpan(out), Soon())));
  // Some of them end badly, as requests past their deadline do.
  ready = 0;
  runtime_->set_fault([&](const MapRuntime::Call& call) {
    return call.kind == CallKind::kReady && ++ready <= 2
               ? absl::ResourceExhaustedError("past its deadline")
               : absl::OkStatus();
  });
  runtime_->set_stalled(false);
  const absl::Status again = Step();
  ASSERT_TRUE(again.ok()) << again;
  ExpectSame();
}

TEST_F(Failure, AReadOfStateThatTimesOutDisturbsNobody) {
  StepBoth(1);
  std::vector<float> out(1);
  const auto read = [&] {
    return optimizer_->ReadState(2, OffloadedOptimizer::StateKind::kFirstMoment,
                                 absl::MakeSpan(out), Soon());
  };
  runtime_->set_stalled(true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(read()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(read()));
  runtime_->set_stalled(false);
  StepBoth(2);
  EXPECT_TRUE(read().ok());
  StepBoth(3);
  ExpectSame();
}

}  // namespace
}  // namespace terrace
