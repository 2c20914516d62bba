// Parameters that are written between steps: an older copy, an average, a
// clamp, one element. The optimizer goes on from what was written, and with
// every bit from its masters where nothing was.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "optimizer/chunks/chunk_layout.h"
#include "tests/optimizer/saving.h"
#include "tests/optimizer/training.h"

namespace terrace {
namespace {

using CallKind = MapRuntime::CallKind;
using Kind = OffloadedOptimizer::StateKind;

// Some of bf16 and fp16 in chunks of several parameters, beside fp32 ones.
Model SmallModel(uint64_t seed) {
  return Model::Of({{"prime", DType::kFloat32, 10007},
                    {"half", DType::kBFloat16, 928},
                    {"none", DType::kFloat16, 0},
                    {"half_prime", DType::kBFloat16, 20011},
                    {"float16", DType::kFloat16, 9001}},
                   seed);
}

// Sets elements of every parameter and tells the reference.
void Write(Training& training, const std::function<bool(int64_t)>& chosen,
           const std::function<float(float)>& value) {
  std::vector<ModelParameter>& parameters = training.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Values& values = parameters[i].values;
    for (int64_t j = 0; j < values.count(); ++j) {
      if (chosen(j)) values.Set(j, value(values.Get(j)));
    }
    training.reference().AdoptValues(training.model(), i);
  }
}

TEST(WrittenParameters, AreWhatTheNextStepBeginsWith) {
  const struct {
    std::string name;
    std::function<bool(int64_t)> chosen;
    std::function<float(float)> value;
  } writes[] = {
      {"one", [](int64_t j) { return j == 700; }, [](float) { return 3.0f; }},
      {"some", [](int64_t j) { return j % 5 == 2; },
       [](float) { return -0.25f; }},
      {"a run", [](int64_t j) { return j >= 300 && j < 9000; },
       [](float x) { return 0.5f * x + 0.01f; }},
      {"clamped", [](int64_t) { return true; },
       [](float x) { return std::clamp(x, -0.1f, 0.1f); }},
      {"all", [](int64_t) { return true; }, [](float) { return 0.125f; }},
      {"none", [](int64_t) { return true; }, [](float x) { return x; }},
  };
  for (const auto& [name, chosen, value] : writes) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(name, ", ", threads, " threads"));
      OptimizerOptions options = SmallChunks();
      options.max_gradient_norm = 1;
      Training training(SmallModel(81), options, threads,
                        {.budget_bytes = 300 << 10, .seed = 81});
      int64_t step = 0;
      for (int round = 0; round < 3; ++round) {
        training.StepBoth(++step);
        training.StepBoth(++step);
        Write(training, chosen, value);
      }
      training.StepBoth(++step);
      training.ExpectSameState();
    }
  }
}

TEST(WrittenParameters, AnOlderCopyIsGoneOnFrom) {
  Training training(SmallModel(82), SmallChunks(), 2,
                    {.budget_bytes = 300 << 10});
  training.StepBoth(1);
  const Model best = training.model();
  for (int64_t step = 2; step <= 5; ++step) training.StepBoth(step);
  for (size_t i = 0; i < best.parameters().size(); ++i) {
    training.model().parameters()[i].values = best.parameters()[i].values;
    training.reference().AdoptValues(training.model(), i);
  }
  for (int64_t step = 6; step <= 8; ++step) training.StepBoth(step);
  training.ExpectSameState();
}

// What is written into a parameter that has no gradient in the next steps, or
// before a step that is skipped, counts once there is a step for it.
TEST(WrittenParameters, KeepWhatWasWrittenUntilTheirNextStep) {
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  Training training(SmallModel(83), options, 2, {.budget_bytes = 300 << 10});
  std::vector<ModelParameter>& parameters = training.model().parameters();
  training.StepBoth(1);
  Write(
      training, [](int64_t j) { return j % 3 == 0; },
      [](float x) { return x + 1; });
  parameters[3].has_gradient = false;
  training.StepBoth(2);
  training.model().DrawGradients(3);
  parameters[4].gradient.Set(17, std::numeric_limits<float>::infinity());
  parameters[3].has_gradient = true;
  Write(
      training, [](int64_t j) { return j % 7 == 0; },
      [](float x) { return x - 2; });
  training.reference().Step({}, training.model());
  ASSERT_TRUE(training.Step().ok());
  EXPECT_TRUE(training.optimizer().last_report().skipped);
  EXPECT_EQ(training.reference().Difference(training.model()), "");
  training.StepBoth(4);
  training.ExpectSameState();
}

// Whether each element of each parameter is in a chunk that has been updated
// `updates` times.
std::vector<std::vector<bool>> UpdatedTimes(Training& training,
                                            int64_t updates) {
  std::vector<std::vector<bool>> updated;
  const std::vector<ParameterSpec> specs = training.model().specs();
  for (const ParameterSpec& spec : specs) {
    updated.emplace_back(static_cast<size_t>(spec.count));
  }
  const std::vector<Chunk> chunks = CutIntoChunks(specs, 64 << 10);
  EXPECT_EQ(chunks.size(), training.map().tensors().size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (training.map().writes({static_cast<int64_t>(i)}) != updates) {
      continue;
    }
    for (const Segment& segment : chunks[i].segments) {
      const auto first =
          updated[static_cast<size_t>(segment.parameter)].begin() +
          segment.parameter_offset;
      std::fill(first, first + segment.count, true);
    }
  }
  return updated;
}

// Chunks that were updated are so once; what is written before the next
// attempt counts in it where the update is missing, else in the next step.
TEST(WrittenParameters, OfAnIncompleteStepAreTakenAsTheyAre) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  for (int failing = 2; failing <= 5; ++failing) {
    SCOPED_TRACE(absl::StrCat("the ready of chunk ", failing));
    Training training(SmallModel(84), SmallChunks(), 1,
                      {.budget_bytes = 300 << 10});
    training.StepBoth(1);
    Model& model = training.model();
    ReferenceOptimizer& step_first = training.reference();
    ReferenceOptimizer write_first = step_first;
    model.DrawGradients(2);
    int ready = 0;
    training.map().set_fault([&](const MapRuntime::Call& call) {
      return call.kind == CallKind::kReady && ++ready == failing
                 ? absl::UnknownError("EIO")
                 : absl::OkStatus();
    });
    ASSERT_FALSE(training.Step().ok());
    training.map().set_fault(nullptr);
    const std::vector<std::vector<bool>> done = UpdatedTimes(training, 2);
    step_first.Step({}, model);
    for (ReferenceOptimizer* reference : {&step_first, &write_first}) {
      Model written = model;
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        Values& values = written.parameters()[i].values;
        values = reference->values(i);
        for (int64_t j = 0; j < values.count(); j += 2) values.Set(j, 0.5f);
        reference->AdoptValues(written, i);
      }
    }
    for (ModelParameter& parameter : model.parameters()) {
      for (int64_t j = 0; j < parameter.spec.count; j += 2) {
        parameter.values.Set(j, 0.5f);
      }
    }
    ASSERT_TRUE(training.Step().ok());
    write_first.Step({}, model);
    for (int64_t step = 3;; ++step) {
      int64_t of_each[2] = {0, 0};
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        const Values& values = model.parameters()[i].values;
        for (int64_t j = 0; j < values.count(); ++j) {
          const bool stepped = done[i][static_cast<size_t>(j)];
          ++of_each[stepped ? 1 : 0];
          ASSERT_EQ(values.Get(j),
                    (stepped ? step_first : write_first).values(i).Get(j))
              << "parameter " << i << ", element " << j;
        }
      }
      EXPECT_GT(of_each[0], 0);
      EXPECT_GT(of_each[1], 0);
      if (step == 5) break;
      model.DrawGradients(step);
      ASSERT_TRUE(training.Step().ok());
      step_first.Step({}, model);
      write_first.Step({}, model);
    }
  }
}

TEST(WrittenParameters, GoBeforeTheMasterOfALoad) {
  for (const bool by_writer : {true, false}) {
    SCOPED_TRACE(by_writer);
    Training training(SmallModel(85), SmallChunks(), 2,
                      {.budget_bytes = 300 << 10});
    training.StepBoth(1);
    const Saved saved = Save(training.optimizer(), 3000);
    Write(
        training, [](int64_t j) { return j % 4 == 1; },
        [](float) { return 0.75f; });
    if (by_writer) {
      auto writer = training.optimizer().OpenStateWriter(Soon());
      ASSERT_TRUE(writer.ok()) << writer.status();
      for (const auto& [key, values] : saved.arrays) {
        const auto& [parameter, kind] = key;
        StateValues given;
        (kind == Kind::kMaster        ? given.master
         : kind == Kind::kFirstMoment ? given.first_moment
                                      : given.second_moment) = values;
        ASSERT_TRUE((*writer)->Write(parameter, 0, given, Soon()).ok());
      }
      ASSERT_TRUE((*writer)->Commit(saved.step, saved.steps).ok());
    } else {
      ASSERT_NO_FATAL_FAILURE(Load(saved, 3000, training.optimizer()));
    }
    training.StepBoth(2);
    training.StepBoth(3);
    training.ExpectSameState();
  }
}

}  // namespace
}  // namespace terrace
