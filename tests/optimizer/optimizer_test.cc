// The optimizer over a Runtime of plain memory, compared bit for bit with the
// scalar reference.
#include "terrace/optimizer.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/chunks/chunk_layout.h"
#include "tests/optimizer/training.h"
#include "tests/support/inline_executor.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Arrangement {
  int64_t chunk_bytes;
  int64_t budget_bytes;
  int threads;
  std::optional<uint64_t> seed;
  int most_pushed;
};

class EveryArrangement : public testing::TestWithParam<Arrangement> {};

TEST_P(EveryArrangement, GivesTheBitsOfTheReference) {
  const Arrangement& a = GetParam();
  OptimizerOptions options = SmallChunks();
  options.chunk_bytes = a.chunk_bytes;
  options.max_gradient_norm = 1;
  Training training(Model::Mixed(11), options, a.threads,
                    {.budget_bytes = a.budget_bytes,
                     .seed = a.seed,
                     .most_pushed = a.most_pushed});
  for (int step = 1; step <= 5; ++step) {
    training.StepBoth(step, {.learning_rate = 1e-2 / step});
  }
  training.ExpectSameState();
  if (!training.has_map()) return;
  // The first step overwrote, the four after it fetched each chunk once.
  for (size_t i = 0; i < training.map().tensors().size(); ++i) {
    EXPECT_EQ(training.map().writes({static_cast<int64_t>(i)}), 5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, EveryArrangement,
    testing::Values(Arrangement{64 * kKiB, 160 * kKiB, 1, {}, INT_MAX},
                    Arrangement{64 * kKiB, 512 * kKiB, 2, 1, INT_MAX},
                    Arrangement{64 * kKiB, 512 * kKiB, 2, 2, 1},
                    Arrangement{64 * kKiB, 4096 * kKiB, 4, 3, 5},
                    Arrangement{100 * kKiB, 4096 * kKiB, 1, 4, INT_MAX},
                    Arrangement{192 * kKiB, 1024 * kKiB, 4, 5, 3},
                    Arrangement{8192 * kKiB, 1200 * kKiB, 3, {}, INT_MAX},
                    Arrangement{8192 * kKiB, 16384 * kKiB, 8, 6, INT_MAX}));

TEST(OffloadedOptimizer, AdamWithL2AndWithoutBiasCorrectionFollowsToo) {
  OptimizerOptions options = SmallChunks();
  options.adam.decoupled_decay = false;
  options.adam.bias_correction = false;
  options.adam.weight_decay = 0.1;
  Training training(Model::Mixed(3), options, 2, {.budget_bytes = 1 << 20});
  for (int step = 1; step <= 3; ++step) training.StepBoth(step);
  training.ExpectSameState();
  EXPECT_EQ(training.optimizer().last_report().gradient_norm, 0);
}

TEST(OffloadedOptimizer, StaysNearDoublePrecision) {
  // Not through adam.h: the formula of the paper, in double.
  Model model = Model::Of({{"p", DType::kFloat32, 9973}}, 5);
  OptimizerOptions options = SmallChunks();
  std::vector<double> p(model.parameters()[0].values.fp32().begin(),
                        model.parameters()[0].values.fp32().end());
  std::vector<double> m(p.size()), v(p.size());
  Training training(std::move(model), options, 2, {.budget_bytes = 1 << 20});
  const AdamOptions& adam = options.adam;
  for (int step = 1; step <= 20; ++step) {
    training.StepBoth(step);
    const std::vector<float>& g =
        training.model().parameters()[0].gradient.fp32();
    const double k1 = 1 - std::pow(adam.beta1, step);
    const double k2 = 1 - std::pow(adam.beta2, step);
    for (size_t i = 0; i < p.size(); ++i) {
      const double gradient = g[i];
      m[i] = adam.beta1 * m[i] + (1 - adam.beta1) * gradient;
      v[i] = adam.beta2 * v[i] + (1 - adam.beta2) * gradient * gradient;
      p[i] -= adam.learning_rate * adam.weight_decay * p[i];
      p[i] -= adam.learning_rate * (m[i] / k1) /
              (std::sqrt(v[i] / k2) + adam.epsilon);
    }
  }
  for (size_t i = 0; i < p.size(); ++i) {
    ASSERT_NEAR(training.model().parameters()[0].values.fp32()[i], p[i], 1e-5)
        << i;
  }
}

TEST(OffloadedOptimizer, DividesByTheLossScaleAndClipsWhatIsUnscaled) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 0.5;
  Training training(Model::Mixed(4), options, 2, {.budget_bytes = 1 << 20});
  for (int step = 1; step <= 4; ++step) {
    const StepArguments arguments{.loss_scale = step % 2 == 0 ? 1.0 : 1024.0};
    training.StepBoth(step, arguments, step % 2 == 0 ? 1e-5f : 1024.0f);
    EXPECT_EQ(training.optimizer().last_report().gradient_norm,
              training.reference().gradient_norm());
  }
  training.ExpectSameState();
}

TEST(OffloadedOptimizer, SkipsANonFiniteStepAndChangesNothing) {
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  Training training(Model::Mixed(5), options, 2, {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  for (float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (size_t parameter : {0u, 1u, 6u, 11u}) {
      training.model().DrawGradients(2);
      training.model().parameters()[parameter].gradient.Set(927, bad);
      const int64_t calls = training.calls();
      ASSERT_TRUE(training.Step().ok());
      EXPECT_TRUE(training.optimizer().last_report().skipped);
      EXPECT_EQ(training.calls(), calls);
      EXPECT_EQ(training.reference().Difference(training.model()), "");
      EXPECT_EQ(training.optimizer().step(), 1);
    }
  }
  training.StepBoth(2);
  EXPECT_FALSE(training.optimizer().last_report().skipped);
  training.ExpectSameState();
}

TEST(OffloadedOptimizer, WithoutSkippingANonFiniteGradientIsNoError) {
  Training training(Model::Mixed(6), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  training.model().DrawGradients(1);
  training.model().parameters()[0].gradient.Set(3, std::nanf(""));
  ASSERT_TRUE(training.Step().ok());
  const std::vector<float>& p = training.model().parameters()[0].values.fp32();
  EXPECT_TRUE(std::isnan(p[3]));
  EXPECT_FALSE(std::isnan(p[2]));
  EXPECT_FALSE(std::isnan(p[4]));
}

TEST(OffloadedOptimizer, LeavesWhatHasNoGradientUntouched) {
  Training training(Model::Mixed(7), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  std::vector<ModelParameter>& parameters = training.model().parameters();
  // In the first step a chunk may begin with a parameter that has none.
  for (int step = 1; step <= 6; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].has_gradient = (i + static_cast<size_t>(step)) % 3 != 0;
    }
    training.StepBoth(step);
  }
  training.ExpectSameState();
}

TEST(OffloadedOptimizer, DoesNotTouchChunksWithoutAnyGradient) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Model model = Model::Of(
      {{"a", DType::kFloat32, 40960}, {"b", DType::kFloat32, 40960}}, 8);
  model.parameters()[1].has_gradient = false;
  Training training(std::move(model), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  const auto& tensors = training.map().tensors();
  ASSERT_EQ(tensors.size(), 20u);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(training.map().writes({i}), i < 10 ? 1 : 0) << i;
  }
  for (ModelParameter& parameter : training.model().parameters()) {
    parameter.has_gradient = false;
  }
  training.StepBoth(2);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(training.map().writes({i}), i < 10 ? 1 : 0) << i;
  }
  training.ExpectSameState();
}

TEST(OffloadedOptimizer, TheFirstStepFetchesNothing) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Training training(Model::Mixed(9), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  for (size_t i = 0; i < training.map().tensors().size(); ++i) {
    EXPECT_EQ(training.map().reads({static_cast<int64_t>(i)}), 0);
  }
}

TEST(OffloadedOptimizer, StateBeforeTheFirstStepIsZeroAndHasNoMaster) {
  using Kind = OffloadedOptimizer::StateKind;
  Training training(Model::Mixed(10), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  OffloadedOptimizer& optimizer = training.optimizer();
  std::vector<float> out(928, 1.0f);
  ASSERT_TRUE(
      optimizer.ReadState(1, Kind::kFirstMoment, absl::MakeSpan(out), Soon())
          .ok());
  EXPECT_EQ(out, std::vector<float>(928, 0.0f));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      optimizer.ReadState(1, Kind::kMaster, absl::MakeSpan(out), Soon())));
  out.resize(927);
  EXPECT_TRUE(absl::IsInvalidArgument(
      optimizer.ReadState(1, Kind::kFirstMoment, absl::MakeSpan(out), Soon())));
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.ReadState(
      99, Kind::kFirstMoment, absl::MakeSpan(out), Soon())));
  out.resize(1);
  EXPECT_TRUE(absl::IsInvalidArgument(
      optimizer.ReadState(2, Kind::kMaster, absl::MakeSpan(out), Soon())));
}

TEST(OffloadedOptimizer, RefusesBadArgumentsBeforeAnythingChanges) {
  Training training(Model::Mixed(12), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  const auto refused = [&](const StepArguments& arguments,
                           std::vector<ParameterData> data) {
    return absl::IsInvalidArgument(
        training.optimizer().Step(arguments, data, Soon()));
  };
  training.model().DrawGradients(1);
  const std::vector<ParameterData> good = training.model().data();
  std::vector<ParameterData> bad = good;
  bad.pop_back();
  EXPECT_TRUE(refused({}, bad));
  bad = good;
  bad[0].parameter = nullptr;
  EXPECT_TRUE(refused({}, bad));
  bad = good;
  bad[0].gradient_dtype = static_cast<DType>(9);
  EXPECT_TRUE(refused({}, bad));
  bad = good;
  bad[0].gradient = reinterpret_cast<const std::byte*>(good[0].gradient) + 2;
  EXPECT_TRUE(refused({}, bad));
  EXPECT_TRUE(refused({.loss_scale = 0}, good));
  EXPECT_TRUE(refused({.loss_scale = kInfinity}, good));
  EXPECT_TRUE(refused({.learning_rate = std::nan("")}, good));
  EXPECT_EQ(training.calls(), 0);
  EXPECT_FALSE(training.optimizer().incomplete());
  training.StepBoth(1);
}

TEST(OffloadedOptimizer, RefusesABudgetBelowTheMinimumAndNamesIt) {
  InlineExecutor executor;
  MapRuntime runtime({.budget_bytes = 50'000}, SystemClock(), executor);
  const Model model = Model::Mixed(13);
  const auto created =
      OffloadedOptimizer::Create(runtime, model.specs(), SmallChunks());
  ASSERT_TRUE(absl::IsResourceExhausted(created.status()));
  const auto plan =
      OffloadedOptimizer::Plan(model.specs(), SmallChunks(), 1 << 20);
  EXPECT_THAT(std::string(created.status().message()),
              testing::HasSubstr(absl::StrCat(plan->minimum_budget_bytes)));
}

// Advance is the whole optimizer: driven by hand, kernels in a random order.
TEST(OffloadedOptimizer, AdvanceNeverBlocksAndGivesTheSameBits) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    OptimizerOptions options = SmallChunks();
    options.max_gradient_norm = 1;
    Model model = Model::Mixed(seed);
    ReferenceOptimizer reference(model, options);
    InlineExecutor executor(3, seed);
    MapRuntime runtime({.budget_bytes = 512 * kKiB, .seed = seed},
                       SystemClock(), executor);
    auto optimizer =
        OffloadedOptimizer::Create(runtime, model.specs(), options);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    std::mt19937_64 random(seed);
    for (int step = 1; step <= 2; ++step) {
      model.DrawGradients(step);
      reference.Step({}, model);
      ASSERT_TRUE((*optimizer)->Start({}, model.data()).ok());
      EXPECT_TRUE(
          absl::IsFailedPrecondition((*optimizer)->Start({}, model.data())));
      while (!(*optimizer)->Advance()) {
        for (uint64_t i = random() % 3; i > 0; --i) executor.RunOne();
      }
      ASSERT_TRUE((*optimizer)->result().ok()) << (*optimizer)->result();
      EXPECT_EQ(reference.Difference(model), "");
    }
    EXPECT_EQ(reference.StateDifference(**optimizer), "");
    EXPECT_THAT(runtime.violations(), testing::IsEmpty());
  }
}

TEST(OffloadedOptimizer, TheReportAddsUp) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 1;
  Training training(Model::Mixed(14), options, 2, {.budget_bytes = 1 << 20});
  for (int step = 1; step <= 10; ++step) {
    training.StepBoth(step);
    const StepReport& report = training.optimizer().last_report();
    EXPECT_EQ(report.step, step);
    const double sum = report.compute_seconds + report.blocked_read_seconds +
                       report.blocked_write_seconds +
                       report.blocked_space_seconds + report.other_seconds;
    EXPECT_GT(report.compute_seconds, 0);
    EXPECT_NEAR(sum, report.total_seconds, 1e-6);
  }
}

}  // namespace
}  // namespace terrace
