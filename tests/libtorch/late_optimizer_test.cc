// With overlap OffloadedAdamW does what it does without, bit for bit, while its
// updates go on, and whatever needs them waits.
#include <c10/core/InferenceMode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/step/late/update_net.h"
#include "tests/libtorch/late_fixture.h"
#include "tests/libtorch/optimizer_peer.h"

namespace terrace {

namespace {

using testing::HasSubstr;

// What one step that blocks leaves.
std::unique_ptr<Trained> AfterOneStep() {
  auto blocking = std::make_unique<Trained>(false);
  EXPECT_TRUE(blocking->Step(1).ok());
  return blocking;
}

TEST(LateOptimizer, IsBitIdenticalInEveryDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(toString(dtype));
    OptimizerOptions options = SmallChunks();
    options.max_gradient_norm = 0.5;
    Trained late(true, dtype, options), blocking(false, dtype, options);
    for (int step = 1; step <= 6; ++step) {
      for (Trained* one : {&late, &blocking}) {
        one->optimizer().param_groups()[1].options().set_lr(3e-3 / step);
        ASSERT_TRUE(one->Step(step).ok());
        // Gradients of the step are the optimizer's from here on.
        one->optimizer().zero_grad(/*set_to_none=*/step % 2 == 0);
      }
      late.ExpectParametersOf(blocking);
    }
    late.ExpectStateOf(blocking);
    EXPECT_EQ(late.optimizer().offloaded().last_report().gradient_norm,
              blocking.optimizer().offloaded().last_report().gradient_norm);
    EXPECT_EQ(late.optimizer().offloaded().step(), 6);
  }
}

TEST(LateOptimizer, IsNearLibTorchsOwn) {
  Trained late(true);
  const std::vector<at::Tensor> exact =
      CopiesOf(late.parameters(), at::kDouble);
  ::torch::optim::AdamW theirs(Trained::Groups(exact));
  for (int step = 1; step <= 8; ++step) {
    late.Draw(step);
    for (size_t i = 0; i < exact.size(); ++i) {
      exact[i].mutable_grad() = late.parameters()[i].grad().to(at::kDouble);
    }
    late.optimizer().step();
    theirs.step();
  }
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(Distance(late.parameters()[i], exact[i]), 1e-5) << i;
  }
}

TEST(LateOptimizer, TakesWhatAStepIsToldAndTheUsersOwnClip) {
  Trained late(true), blocking(false);
  for (int step = 1; step <= 4; ++step) {
    for (Trained* one : {&late, &blocking}) {
      one->Draw(step);
      if (step % 2 == 0) {
        ::torch::nn::utils::clip_grad_norm_(one->parameters(), 0.5);
      }
      StepArguments arguments;
      arguments.loss_scale = step % 2 == 0 ? 1 : 4;
      if (step == 3) arguments.max_gradient_norm = 0.25;
      ASSERT_TRUE(one->optimizer().TryStep(arguments).ok());
    }
    late.ExpectParametersOf(blocking);
  }
}

// Two backward passes a step, of a loss of all parameters.
void Accumulate(Trained& trained, int64_t step) {
  at::manual_seed(static_cast<uint64_t>(step));
  for (int pass = 0; pass < 2; ++pass) {
    const at::Tensor factor = at::randn({});
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& parameter : trained.parameters()) {
      loss = loss + (parameter * factor).tanh().sum();
    }
    loss.backward();
  }
}

TEST(LateOptimizer, TrainsWithAccumulatedGradients) {
  Trained late(true), blocking(false);
  for (int step = 1; step <= 5; ++step) {
    for (Trained* one : {&late, &blocking}) {
      one->optimizer().zero_grad(/*set_to_none=*/step != 3);
      Accumulate(*one, step);
      one->optimizer().step();
    }
  }
  for (Trained* one : {&late, &blocking}) {  // nothing has a gradient
    one->optimizer().zero_grad();
    one->optimizer().step();
    EXPECT_EQ(one->optimizer().offloaded().step(), 6);
  }
  late.ExpectParametersOf(blocking);
  late.ExpectStateOf(blocking);
}

TEST(LateOptimizer, AStepReturnsWhileUpdatesGoOnAndOperationsWait) {
  const auto expected = AfterOneStep();
  Trained late(true);
  Gate gate(late.runtime());
  ASSERT_TRUE(late.Step(1).ok());
  for (const absl::Time deadline :
       {absl::InfinitePast(), absl::Now() + absl::Milliseconds(20)}) {
    const absl::Status status = late.optimizer().Flush(deadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  // Of the step that was made: what comes after it is of the next.
  late.optimizer().param_groups()[0].options().set_lr(0.5);
  late.optimizer().zero_grad();
  std::atomic<bool> is_seen = false;
  std::thread reader([&] {
    late.ExpectParametersOf(*expected);
    is_seen = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(is_seen);
  gate.Open();
  reader.join();
  ASSERT_TRUE(late.optimizer().Flush().ok());
  late.ExpectStateOf(*expected);
}

TEST(LateOptimizer, WhatNeedsTheStateWaits) {
  const auto expected = AfterOneStep();
  const auto waits = [&](auto use) {
    Trained late(true);
    Gate gate(late.runtime());
    ASSERT_TRUE(late.Step(1).ok());
    std::thread opener([&] {
      absl::SleepFor(absl::Milliseconds(20));
      gate.Open();
    });
    use(late);
    opener.join();
    late.ExpectParametersOf(*expected);
    late.ExpectStateOf(*expected);
  };
  waits([](Trained& late) {
    const auto state = late.optimizer().StateOf(late.parameters()[4]);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 1);
  });
  waits([&](Trained& late) {
    Trained loaded(false);
    loaded.Load(late.Save());
    loaded.ExpectStateOf(*expected);
  });
  waits(
      [](Trained& late) { EXPECT_EQ(late.optimizer().offloaded().step(), 1); });
  const std::string saved = expected->Save();
  waits([&](Trained& late) { late.Load(saved); });
}

TEST(LateOptimizer, ItsEndWaitsForTheUpdates) {
  const auto expected = AfterOneStep();
  Trained late(true);
  Gate gate(late.runtime());
  ASSERT_TRUE(late.Step(1).ok());
  std::thread opener([&] {
    absl::SleepFor(absl::Milliseconds(20));
    gate.Open();
  });
  late.DestroyOptimizer();
  opener.join();
  EXPECT_TRUE(UpdateNet::Get().pending().empty());
  late.ExpectParametersOf(*expected);
}

TEST(LateOptimizer, ParametersMayComeWhileUpdatesGoOn) {
  Trained late(true), blocking(false);
  for (Trained* one : {&late, &blocking}) {
    ASSERT_TRUE(one->Step(1).ok());
    at::manual_seed(11);
    one->parameters().push_back(at::randn({300}).set_requires_grad(true));
    one->optimizer().add_param_group(
        std::vector<at::Tensor>{one->parameters().back()});
    ASSERT_TRUE(one->Step(2).ok());
    // With and without it in turns.
    one->optimizer().set_overlap(false);
    ASSERT_TRUE(one->Step(3).ok());
    one->optimizer().set_overlap(one == &late);
    ASSERT_TRUE(one->Step(4).ok());
  }
  late.ExpectParametersOf(blocking);
  late.ExpectStateOf(blocking);
}

TEST(LateOptimizer, ASkippedStepHasNoUpdates) {
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  Trained late(true, at::kFloat, options), blocking(false, at::kFloat, options);
  for (Trained* one : {&late, &blocking}) {
    ASSERT_TRUE(one->Step(1).ok());
    one->Draw(2);
    one->parameters()[4].grad()[7] = std::numeric_limits<float>::infinity();
    const int64_t version = one->parameters()[4]._version();
    ASSERT_TRUE(one->optimizer().TryStep().ok());
    EXPECT_EQ(one->parameters()[4]._version(), version);
    EXPECT_TRUE(one->optimizer().offloaded().last_report().skipped);
    ASSERT_TRUE(one->Step(3).ok());
  }
  late.ExpectParametersOf(blocking);
  // Also where only the step says so.
  late.Draw(4);
  late.parameters()[0].grad().fill_(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(late.optimizer().TryStep({.skip_nonfinite = true}).ok());
  late.ExpectParametersOf(blocking);
}

TEST(LateOptimizer, AutogradNoticesTheStepAtOnce) {
  const auto runtime = MakeRuntime();
  at::Tensor weight = at::ones({3}).set_requires_grad(true);
  auto optimizer = *OffloadedAdamW::Create(
      *runtime, std::vector<at::Tensor>{weight}, SmallChunks());
  optimizer->set_overlap(true);
  const at::Tensor graph = (weight * weight).sum();
  weight.mutable_grad() = at::ones({3});
  const int64_t version = weight._version();
  optimizer->step();
  EXPECT_EQ(weight._version(), version + 1);
  EXPECT_THROW(graph.backward(), c10::Error);
  ASSERT_TRUE(optimizer->Flush().ok());
  EXPECT_EQ(weight._version(), version + 1);
}

TEST(LateOptimizer, AnotherOptimizersStepWaitsForTheParametersOfBoth) {
  const auto step_both = [](bool overlap) {
    auto first = std::make_unique<Trained>(overlap);
    const auto runtime = MakeRuntime();
    auto second = *OffloadedAdamW::Create(*runtime, {first->parameters()[4]},
                                          SmallChunks());
    Gate gate(first->runtime());
    if (!overlap) gate.Open();
    EXPECT_TRUE(first->Step(1).ok());
    std::thread opener([&] {
      absl::SleepFor(absl::Milliseconds(20));
      gate.Open();
    });
    EXPECT_TRUE(second->TryStep().ok());
    opener.join();
    return first;
  };
  const auto late = step_both(true), blocking = step_both(false);
  late->ExpectParametersOf(*blocking);
}

TEST(LateOptimizer, RefusesParametersOnADeviceAndGradientsForTheNorm) {
  const auto expected = AfterOneStep();
  Trained late(true);
  const absl::Status norm =
      late.Step(1, {.norm_gradients = absl::Span<const GradientData>()});
  EXPECT_TRUE(absl::IsUnimplemented(norm)) << norm;
  EXPECT_THAT(std::string(norm.message()), HasSubstr("norm_gradients"));
  // CPU memory is the device here.
  OffloadedAdamPeer::StepThroughCopies(late.optimizer());
  late.parameters()[0].mutable_grad().reset();
  const absl::Status device = late.optimizer().TryStep();
  EXPECT_TRUE(absl::IsUnimplemented(device)) << device;
  EXPECT_THAT(std::string(device.message()),
              HasSubstr("parameter 1 is on cpu"));
  EXPECT_FALSE(late.optimizer().offloaded().incomplete());
  EXPECT_EQ(late.optimizer().offloaded().step(), 0);
  late.optimizer().set_overlap(false);
  ASSERT_TRUE(late.Step(1).ok());
  late.ExpectParametersOf(*expected);
}

TEST(LateOptimizer, RefusesInferenceTensors) {
  const auto runtime = MakeRuntime();
  at::Tensor fixed;
  {
    const c10::InferenceMode inference;
    fixed = at::ones({3});
  }
  auto optimizer = *OffloadedAdamW::Create(
      *runtime, std::vector<at::Tensor>{fixed}, SmallChunks());
  optimizer->set_overlap(true);
  fixed.mutable_grad() = at::ones({3});
  const absl::Status status = optimizer->TryStep();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("parameter 0 is an inference tensor"));
  optimizer->set_overlap(false);
  EXPECT_TRUE(optimizer->TryStep().ok());
  EXPECT_LT(fixed.max().item<float>(), 1);
}

}  // namespace
}  // namespace terrace
