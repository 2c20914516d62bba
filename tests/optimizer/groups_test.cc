// Groups with options of their own, parameters with counters of their own.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

// Mixed, its parameters dealt out among `groups`: neighbours in a chunk differ.
Model Grouped(int groups, uint64_t seed) {
  Model model = Model::Mixed(seed);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    model.parameters()[i].spec.group = static_cast<int>(i) % groups;
  }
  return model;
}

// Three groups that differ in everything and from step to step.
std::vector<AdamOptions> ThreeGroups(int step) {
  return {{.learning_rate = 1e-2 / step, .weight_decay = 0},
          {.learning_rate = 1e-3 * step,
           .beta1 = step % 2 == 0 ? 0.8 : 0.85,
           .beta2 = 0.99,
           .epsilon = 1e-6,
           .weight_decay = 0.1 * step,
           .decoupled_decay = step % 2 == 0},
          {.learning_rate = 0,
           .beta1 = 0,
           .epsilon = 1e-3,
           .weight_decay = 0.3,
           .decoupled_decay = false,
           .bias_correction = step < 3}};
}

TEST(OptimizerGroups, FollowTheirOwnOptionsThatChangeBetweenSteps) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 0.5;
  Training training(Grouped(3, 51), options, 3,
                    {.budget_bytes = 512 << 10, .seed = 51});
  for (int step = 1; step <= 5; ++step) {
    const std::vector<AdamOptions> groups = ThreeGroups(step);
    training.StepBoth(step, {.groups = groups});
  }
  training.ExpectSameState();
  // One learning rate for all goes before those of the groups.
  const std::vector<AdamOptions> groups = ThreeGroups(6);
  training.StepBoth(6, {.learning_rate = 0.02, .groups = groups});
  // And without groups in a step, the options are all parameters'.
  training.StepBoth(7);
  training.ExpectSameState();
}

// One group maximizes what the other minimizes; clipped, with both decays.
TEST(OptimizerGroups, MaximizeByTheGradientsOtherSign) {
  for (const bool decoupled : {true, false}) {
    OptimizerOptions options = SmallChunks();
    options.max_gradient_norm = 0.5;
    Training training(Grouped(2, 54), options, 2,
                      {.budget_bytes = 512 << 10, .seed = 54});
    std::vector<AdamOptions> plain(
        2, {.weight_decay = 0.2, .decoupled_decay = decoupled});
    std::vector<AdamOptions> groups = plain;
    groups[1].maximize = true;
    for (int step = 1; step <= 3; ++step) {
      training.model().DrawGradients(step);
      Model turned = training.model();
      for (ModelParameter& parameter : turned.parameters()) {
        if (parameter.spec.group == 0) continue;
        for (int64_t i = 0; i < parameter.spec.count; ++i) {
          parameter.gradient.Set(i, -parameter.gradient.Get(i));
        }
      }
      training.reference().Step({.groups = plain}, turned);
      ASSERT_TRUE(training.Step({.groups = groups}).ok());
      EXPECT_EQ(training.reference().Difference(training.model()), "");
    }
    training.ExpectSameState();
  }
}

TEST(OptimizerGroups, AreCheckedBeforeAnythingChanges) {
  Training training(Grouped(3, 52), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  training.model().DrawGradients(1);
  const auto refused = [&](std::vector<AdamOptions> groups) {
    const absl::Status status = training.Step({.groups = groups});
    return absl::IsInvalidArgument(status) ? std::string(status.message()) : "";
  };
  EXPECT_THAT(refused(std::vector<AdamOptions>(2)),
              testing::HasSubstr("is in group 2"));
  EXPECT_THAT(refused({{}, {.beta1 = 1}, {}}),
              testing::HasSubstr("group 1: beta1 is 1"));
  EXPECT_THAT(refused({{}, {}, {.learning_rate = std::nan("")}}),
              testing::HasSubstr("group 2: learning_rate is nan"));
  EXPECT_THAT(refused({{.weight_decay = -1}, {}, {}}),
              testing::HasSubstr("group 0: weight_decay is -1"));
  EXPECT_THAT(refused({{.epsilon = -1}, {}, {}}),
              testing::HasSubstr("epsilon"));
  EXPECT_TRUE(
      absl::IsInvalidArgument(training.Step({.max_gradient_norm = -1.0})));
  EXPECT_EQ(training.calls(), 0);
  training.StepBoth(1);
}

TEST(OptimizerGroups, ANegativeGroupIsRefusedAtCreation) {
  const ParameterSpec spec{"a", DType::kFloat32, 4, -1};
  EXPECT_TRUE(absl::IsInvalidArgument(
      OffloadedOptimizer::Plan({&spec, 1}, SmallChunks(), 1 << 20).status()));
}

TEST(ParameterSteps, EachParametersBiasCorrectionFollowsItsOwn) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Training training(Grouped(2, seed), SmallChunks(), 2,
                      {.budget_bytes = 512 << 10, .seed = seed});
    std::mt19937_64 random(seed);
    for (int step = 1; step <= 8; ++step) {
      for (ModelParameter& parameter : training.model().parameters()) {
        parameter.has_gradient = random() % 3 == 0;
      }
      training.StepBoth(step);
    }
    training.ExpectSameState();
    EXPECT_EQ(training.optimizer().step(), 8);
  }
}

TEST(ParameterSteps, AMasterIsMadeAtTheFirstGradientNotBefore) {
  Model model = Model::Of({{"first", DType::kBFloat16, 1000},
                           {"late", DType::kBFloat16, 3001},
                           {"float16", DType::kFloat16, 17}},
                          53);
  model.parameters()[1].has_gradient = false;
  Training training(std::move(model), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);  // writes the chunk that `late` lies in
  std::vector<float> out(3001);
  EXPECT_TRUE(absl::IsFailedPrecondition(training.optimizer().ReadState(
      1, OffloadedOptimizer::StateKind::kMaster, absl::MakeSpan(out), Soon())));
  // Other weights are loaded into the parameter.
  ModelParameter& late = training.model().parameters()[1];
  for (int64_t i = 0; i < late.spec.count; ++i) {
    late.values.Set(i, 0.001f * static_cast<float>(i));
  }
  training.reference().AdoptValues(training.model(), 1);
  late.has_gradient = true;
  training.StepBoth(2);
  training.StepBoth(3);
  training.ExpectSameState();
}

TEST(StepArguments, ClipAndSkipAreForOneStep) {
  Training training(Model::Mixed(54), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  EXPECT_EQ(training.optimizer().last_report().gradient_norm, 0);
  training.StepBoth(2, {.max_gradient_norm = 0.25});
  EXPECT_EQ(training.optimizer().last_report().gradient_norm,
            training.reference().gradient_norm());
  training.StepBoth(3, {.loss_scale = 8, .max_gradient_norm = 0.5});
  training.model().DrawGradients(4);
  training.model().parameters()[7].gradient.Set(
      5, std::numeric_limits<float>::infinity());
  ASSERT_TRUE(training.Step({.skip_nonfinite = true}).ok());
  EXPECT_TRUE(training.optimizer().last_report().skipped);
  training.StepBoth(4);
  training.ExpectSameState();
}

}  // namespace
}  // namespace terrace
