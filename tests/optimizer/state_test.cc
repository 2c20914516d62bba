// State in and out: checkpoints by ranges, parameters added later, Reset.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/saving.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using Kind = OffloadedOptimizer::StateKind;

constexpr Kind kMaster = Kind::kMaster;
constexpr Kind kFirst = Kind::kFirstMoment;
constexpr Kind kSecond = Kind::kSecondMoment;

struct Resumption {
  int64_t chunk_bytes;
  int64_t budget_bytes;
  int64_t save_range;
  int64_t load_range;
};

class Resume : public testing::TestWithParam<Resumption> {};

TEST_P(Resume, IsBitIdenticalToTheRunThatWentOn) {
  const Resumption& c = GetParam();
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 1;
  Training training(Model::Mixed(61), options, 2,
                    {.budget_bytes = 512 << 10, .seed = 61});
  std::vector<ModelParameter>& parameters = training.model().parameters();
  parameters[2].has_gradient = false;   // some have no state at the save
  parameters[10].has_gradient = false;  // of 16 bits
  for (int step = 1; step <= 3; ++step) training.StepBoth(step);
  const Saved saved = Save(training.optimizer(), c.save_range);

  OptimizerOptions others = options;
  others.chunk_bytes = c.chunk_bytes;
  auto executor = *MakePoolExecutor(1, {});
  MapRuntime runtime({.budget_bytes = c.budget_bytes, .seed = 62},
                     SystemClock(), *executor);
  Model model = training.model();
  auto resumed = OffloadedOptimizer::Create(runtime, model.specs(), others);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_NO_FATAL_FAILURE(Load(saved, c.load_range, **resumed));
  for (int step = 4; step <= 6; ++step) {
    for (size_t i : {2u, 10u}) {
      parameters[i].has_gradient = true;
      model.parameters()[i].has_gradient = true;
    }
    training.StepBoth(step);
    model.DrawGradients(step);
    ASSERT_TRUE((*resumed)->Step({}, model.data(), Soon()).ok());
    EXPECT_EQ(training.reference().Difference(model), "") << "step " << step;
  }
  EXPECT_EQ(training.reference().StateDifference(**resumed), "");
  EXPECT_EQ((*resumed)->step(), 6);
  EXPECT_THAT(
      (*resumed)->parameter_steps(),
      testing::ElementsAreArray(training.reference().parameter_steps()));
  training.ExpectSameState();
  EXPECT_THAT(runtime.violations(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Arrangements, Resume,
    testing::Values(Resumption{64 << 10, 512 << 10, 1 << 20, 1 << 20},
                    Resumption{64 << 10, 200 << 10, 4096, 1009},
                    Resumption{100 << 10, 4 << 20, 997, 4096},
                    Resumption{8 << 20, 2 << 20, 1 << 20, 613},
                    Resumption{8 << 20, 16 << 20, 5000, 1 << 20}));

TEST(LoadedState, AlsoReplacesWhatAUsedOptimizerHad) {
  Training training(Model::Mixed(63), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  const Saved saved = Save(training.optimizer(), 3000);
  const Model then = training.model();
  ReferenceOptimizer continued = training.reference();
  training.StepBoth(2);
  training.StepBoth(3);
  for (size_t i = 0; i < then.parameters().size(); ++i) {
    training.model().parameters()[i].values = then.parameters()[i].values;
  }
  ASSERT_NO_FATAL_FAILURE(Load(saved, 3000, training.optimizer()));
  for (int step = 2; step <= 4; ++step) {
    training.model().DrawGradients(step);
    continued.Step({}, training.model());
    ASSERT_TRUE(training.Step().ok());
    EXPECT_EQ(continued.Difference(training.model()), "");
  }
  EXPECT_EQ(continued.StateDifference(training.optimizer()), "");
}

TEST(LoadedState, AnFp16MasterMayStayAwayAndIsThenMadeFromTheParameter) {
  // As from a state of torch.optim.AdamW, which has none.
  Training training(Model::Of({{"half", DType::kFloat16, 20011},
                               {"brain", DType::kBFloat16, 20011}},
                              64),
                    SmallChunks(), 2, {.budget_bytes = 1 << 20});
  OffloadedOptimizer& optimizer = training.optimizer();
  const std::vector<float> m(20011, 0.01f), v(20011, 0.0004f);
  for (int i : {0, 1}) {
    ASSERT_TRUE(optimizer.WriteState(i, kFirst, 0, m, Soon()).ok());
    ASSERT_TRUE(optimizer.WriteState(i, kSecond, 0, v, Soon()).ok());
  }
  ASSERT_TRUE(optimizer.SetSteps(7, {7, 9}).ok());
  training.model().DrawGradients(1);
  // What one step must give, without the reference optimizer.
  std::vector<std::vector<float>> expected;
  for (size_t i : {0u, 1u}) {
    const ModelParameter& parameter = training.model().parameters()[i];
    std::vector<float> p, m1 = m, v1 = v;
    for (int64_t j = 0; j < 20011; ++j) p.push_back(parameter.values.Get(j));
    AdamStepReference({}, i == 0 ? 8 : 10, 1, absl::MakeSpan(p),
                      absl::MakeSpan(m1), absl::MakeSpan(v1),
                      parameter.spec.dtype, parameter.gradient.bits());
    expected.push_back(std::move(p));
  }
  ASSERT_TRUE(training.Step().ok());
  for (int i : {0, 1}) {
    std::vector<float> master(20011);
    ASSERT_TRUE(
        optimizer.ReadState(i, kMaster, absl::MakeSpan(master), Soon()).ok());
    EXPECT_EQ(master, expected[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(optimizer.step(), 8);
}

TEST(LoadedState, AMasterIsWrittenWithoutGapsAndWhole) {
  Training training(Model::Of({{"half", DType::kBFloat16, 9001}}, 65),
                    SmallChunks(), 1, {.budget_bytes = 1 << 20});
  OffloadedOptimizer& optimizer = training.optimizer();
  const std::vector<float> some(4000, 0.5f);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      optimizer.WriteState(0, kMaster, 1, some, Soon())));
  ASSERT_TRUE(optimizer.WriteState(0, kMaster, 0, some, Soon()).ok());
  ASSERT_TRUE(optimizer.WriteState(0, kMaster, 4000, some, Soon()).ok());
  training.model().DrawGradients(1);
  const absl::Status status = training.Step();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("8000 of 9001"));
  EXPECT_FALSE(optimizer.incomplete());
  ASSERT_TRUE(optimizer
                  .WriteState(0, kMaster, 8000,
                              absl::MakeConstSpan(some).subspan(0, 1001),
                              Soon())
                  .ok());
  EXPECT_TRUE(training.Step().ok());
}

TEST(LoadedState, RangesAndKindsAreChecked) {
  Training training(Model::Mixed(66), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  OffloadedOptimizer& optimizer = training.optimizer();
  std::vector<float> three(3);
  const auto refused = [&](int parameter, Kind kind, int64_t offset) {
    return absl::IsInvalidArgument(optimizer.ReadState(
               parameter, kind, offset, absl::MakeSpan(three), Soon())) &&
           absl::IsInvalidArgument(
               optimizer.WriteState(parameter, kind, offset, three, Soon()));
  };
  EXPECT_TRUE(refused(1, kFirst, -1));
  EXPECT_TRUE(refused(1, kFirst, 926));
  EXPECT_TRUE(refused(1, kFirst, std::numeric_limits<int64_t>::max()));
  EXPECT_TRUE(refused(-1, kFirst, 0));
  EXPECT_TRUE(refused(12, kFirst, 0));
  EXPECT_TRUE(refused(0, kMaster, 0));
  EXPECT_TRUE(optimizer.WriteState(3, kFirst, 0, {}, Soon()).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.SetSteps(1, {1, 2})));
  const std::vector<int64_t> steps(12, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.SetSteps(-1, steps)));
  std::vector<int64_t> negative = steps;
  negative[4] = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(optimizer.SetSteps(1, negative)));
  EXPECT_TRUE(optimizer.SetSteps(1, steps).ok());
}

TEST(LoadedState, AWriteThatTimesOutIsWrittenAgain) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Training training(Model::Of({{"a", DType::kFloat32, 30011}}, 67),
                    SmallChunks(), 1, {.budget_bytes = 1 << 20});
  OffloadedOptimizer& optimizer = training.optimizer();
  const std::vector<float> values(30011, 0.25f);
  training.map().set_stalled(true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      optimizer.WriteState(0, kFirst, 0, values, Soon())));
  training.map().set_stalled(false);
  ASSERT_TRUE(optimizer.WriteState(0, kFirst, 0, values, Soon()).ok());
  std::vector<float> out(30011), zeros(30011);
  ASSERT_TRUE(optimizer.ReadState(0, kFirst, absl::MakeSpan(out), Soon()).ok());
  EXPECT_EQ(out, values);
  ASSERT_TRUE(
      optimizer.ReadState(0, kSecond, absl::MakeSpan(out), Soon()).ok());
  EXPECT_EQ(out, zeros);
}

TEST(LoadedState, ARangeThatFailedIsWrittenOrReadAgain) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Training training(Model::Mixed(75), SmallChunks(), 2,
                    {.budget_bytes = 512 << 10});
  training.StepBoth(1);
  training.StepBoth(2);
  // Every seventh call fails, also of the attempts at what failed.
  int64_t calls = 0, failures = 0;
  training.map().set_fault([&](const MapRuntime::Call&) {
    return ++calls % 7 == 0 ? absl::UnknownError("EIO") : absl::OkStatus();
  });
  const auto insist = [&](const auto& attempt) {
    for (int i = 0; i < 3; ++i) {
      const absl::Status status = attempt();
      if (status.ok()) return;
      EXPECT_EQ(status.message(), "EIO");
      ++failures;
    }
    ADD_FAILURE() << "three times in a row";
  };
  OffloadedOptimizer& optimizer = training.optimizer();
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ParameterSpec& spec = optimizer.parameters()[i];
    const int parameter = static_cast<int>(i);
    for (int64_t from = 0; from < spec.count; from += 1500) {
      std::vector<float> values(
          static_cast<size_t>(std::min<int64_t>(1500, spec.count - from)));
      for (Kind kind : StateKindsOf(spec)) {
        insist([&] {
          return optimizer.ReadState(parameter, kind, from,
                                     absl::MakeSpan(values), Soon());
        });
        insist([&] {
          return optimizer.WriteState(parameter, kind, from, values, Soon());
        });
      }
    }
  }
  training.map().set_fault(nullptr);
  EXPECT_GT(failures, 20);
  training.ExpectSameState();
  training.StepBoth(3);
  training.ExpectSameState();
}

TEST(AddedParameters, TakeTheNextIndicesAndStartTheirOwnCounters) {
  for (int64_t budget : {200 << 10, 8 << 20}) {
    SCOPED_TRACE(budget);
    // Few bytes at first: the window must grow with what is added.
    Training training(
        Model::Of({{"tiny", DType::kFloat32, 3}, {"none", DType::kBFloat16, 0}},
                  68),
        SmallChunks(), 2, {.budget_bytes = budget, .seed = 68});
    training.StepBoth(1);
    int64_t step = 1;
    for (uint64_t round = 0; round < 3; ++round) {
      std::vector<ParameterSpec> added = Model::Mixed(round).specs();
      if (round == 1) added = {{"empty", DType::kFloat32, 0}};
      training.model().Add(added, 69 + round);
      EXPECT_TRUE(absl::IsInvalidArgument(training.Step()));
      const absl::Status status = training.optimizer().AddParameters(added);
      ASSERT_TRUE(status.ok()) << status;
      training.StepBoth(++step);
      training.StepBoth(++step);
    }
    training.ExpectSameState();
    if (training.has_map()) {
      EXPECT_EQ(training.optimizer().plan().chunks,
                static_cast<int64_t>(training.map().tensors().size()));
    }
    EXPECT_LE(training.runtime().GetStats().window_bytes, budget);
  }
}

TEST(AddedParameters, WithoutRoomLeaveTheOptimizerAsItWas) {
  Training training(Model::Of({{"tiny", DType::kFloat32, 3}}, 70),
                    SmallChunks(), 1, {.budget_bytes = 100 << 10});
  training.StepBoth(1);
  const absl::Status status =
      training.optimizer().AddParameters({{"big", DType::kFloat32, 100'000}});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(training.optimizer().parameters().size(), 1u);
  training.StepBoth(2);
  // The runtime may refuse the window after all: another queue has the room.
  auto other = training.runtime().OpenQueue(40 << 10, 1, Soon());
  ASSERT_TRUE(other.ok());
  const absl::Status refused =
      training.optimizer().AddParameters({{"b", DType::kFloat32, 4'000}});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  training.StepBoth(3);
  other->reset();
  training.model().Add({{"b", DType::kFloat32, 4'000}}, 71);
  const absl::Status added =
      training.optimizer().AddParameters({{"b", DType::kFloat32, 4'000}});
  ASSERT_TRUE(added.ok()) << added;
  training.StepBoth(4);
  training.ExpectSameState();
}

TEST(AddedParameters, AnOptimizerMayBeginWithNoElementsAtAll) {
  Training training(Model::Of({{"none", DType::kFloat32, 0}}, 72),
                    SmallChunks(), 1, {.budget_bytes = 1 << 20});
  training.StepBoth(1);
  training.StepBoth(2, {.max_gradient_norm = 1});
  training.ExpectSameState();
  EXPECT_EQ(training.runtime().GetStats().window_bytes, 0);
  training.model().Add({{"one", DType::kFloat16, 1}}, 73);
  ASSERT_TRUE(
      training.optimizer().AddParameters({{"one", DType::kFloat16, 1}}).ok());
  training.StepBoth(3);
  training.ExpectSameState();
}

TEST(Reset, ForgetsAnIncompleteStepAndItsRequests) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  for (const bool stalled : {false, true}) {
    SCOPED_TRACE(stalled);
    Training training(Model::Mixed(74), SmallChunks(), 2,
                      {.budget_bytes = 512 << 10});
    OffloadedOptimizer& optimizer = training.optimizer();
    const Model beginning = training.model();
    const ReferenceOptimizer anew(beginning, SmallChunks());
    training.StepBoth(1);
    training.model().DrawGradients(2);
    int64_t ready = 0;
    training.map().set_fault([&](const MapRuntime::Call& call) {
      if (call.kind != MapRuntime::CallKind::kReady || ++ready != 4) {
        return absl::OkStatus();
      }
      if (!stalled) return absl::UnknownError("EIO");
      training.map().set_stalled(true);
      return absl::OkStatus();
    });
    ASSERT_FALSE(training.Step().ok());
    training.map().set_fault(nullptr);
    training.map().set_stalled(false);
    ASSERT_TRUE(optimizer.incomplete());
    const std::vector<float> values(1);
    EXPECT_TRUE(absl::IsFailedPrecondition(
        optimizer.WriteState(2, kFirst, 0, values, Soon())));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        optimizer.SetSteps(0, std::vector<int64_t>(12))));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        optimizer.AddParameters({{"x", DType::kFloat32, 1}})));
    ASSERT_TRUE(optimizer.Reset(Soon()).ok());
    EXPECT_FALSE(optimizer.incomplete());
    EXPECT_EQ(optimizer.step(), 0);
    EXPECT_EQ(anew.StateDifference(optimizer), "");
    ReferenceOptimizer again = anew;
    Model model = beginning;
    for (int step = 1; step <= 3; ++step) {
      model.DrawGradients(step);
      again.Step({}, model);
      ASSERT_TRUE(optimizer.Step({}, model.data(), Soon()).ok());
      EXPECT_EQ(again.Difference(model), "");
    }
    EXPECT_EQ(again.StateDifference(optimizer), "");
  }
}

}  // namespace
}  // namespace terrace
