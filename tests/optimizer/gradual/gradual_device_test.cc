// Gradual steps of parameters on devices: the bits of the serial loop, and what
// a failed call to a device leaves.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizer/device_training.h"

namespace terrace {
namespace {

Model TinyModel() {
  return Model::Of({{"prime", DType::kFloat32, 4801},
                    {"none", DType::kFloat32, 0},
                    {"half", DType::kBFloat16, 928},
                    {"next", DType::kFloat32, 9001},
                    {"fp16", DType::kFloat16, 4111}},
                   23);
}

// The last parameter's gradient comes first. Its Status, or that of its start.
absl::Status GradualStepOf(DeviceTraining& training) {
  static float nothing = 0;  // where one without elements is
  const std::vector<ParameterData> data = training.data();
  std::vector<ParameterData> expected = data;
  std::vector<int> order;
  for (size_t i = data.size(); i > 0; --i) {
    ParameterData& each = expected[i - 1];
    each.gradient = nullptr;
    if (each.parameter == nullptr) each.parameter = &nothing;
    order.push_back(static_cast<int>(i - 1));
  }
  auto step = training.optimizer().StartGradual({}, expected, order);
  if (!step.ok()) return step.status();
  absl::Status status;
  for (const int parameter : order) {
    const ParameterData& each = data[static_cast<size_t>(parameter)];
    if (status.ok()) {
      status = (*step)->Supply(parameter, each.gradient, each.gradient_dtype);
    }
  }
  if (status.ok()) status = (*step)->Finish(Soon());
  step->reset();
  training.Download();
  return status;
}

TEST(GradualOnADevice, GivesTheBitsOfTheSerialLoop) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    for (const bool all : {true, false}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, all ? ", all" : ", some"));
      DeviceTraining training(TinyModel(), SmallChunks(), 2, seed);
      training.PlaceAll(0);
      if (!all) {
        training.Place(0, -1);
        training.Place(3, 1);
      }
      for (int64_t step = 1; step <= 4; ++step) {
        training.DrawGradients(step);
        training.reference().Step({}, training.model());
        const absl::Status status = GradualStepOf(training);
        ASSERT_TRUE(status.ok()) << status;
        training.ExpectSame();
      }
    }
  }
}

// Before the step has begun nothing is changed; from then on it poisons.
TEST(GradualOnADevice, EachCallThatFails) {
  int begun = 0;
  int not_begun = 0;
  for (int64_t fail = 0;; ++fail) {
    SCOPED_TRACE(absl::StrCat("call ", fail));
    DeviceTraining training(TinyModel(), SmallChunks(), 2, 31);
    training.PlaceAll(0);
    training.DrawGradients(1);
    training.reference().Step({}, training.model());
    training.device(0).set_fault([&](const FakeDevice::Call& call) {
      return call.index == fail ? absl::InternalError("device: bus error")
                                : absl::OkStatus();
    });
    const absl::Status status = GradualStepOf(training);
    const bool untouched = training.device(0).calls() <= fail;
    training.device(0).set_fault(nullptr);
    if (status.ok()) {
      training.ExpectSame();
      ASSERT_TRUE(untouched) << "a failed call was not told";
      break;
    }
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("device: bus error"));
    const absl::Status later = GradualStepOf(training);
    if (later.ok()) {
      ++not_begun;
      training.ExpectSame();
      continue;
    }
    ++begun;
    EXPECT_TRUE(absl::IsDataLoss(later) || absl::IsFailedPrecondition(later))
        << later;
    EXPECT_EQ(training.Step(), later);
  }
  EXPECT_GT(begun, 10);
  EXPECT_GT(not_begun, 1);
}

// To its end; appends what it stepped.
absl::Status LateStepOf(DeviceTraining& training, std::vector<int>* stepped) {
  auto step = training.optimizer().StartLate({}, training.data(), {}, Soon());
  if (!step.ok()) return step.status();
  while (!(*step)->Advance()) {
    (*step)->TakeStepped(stepped);
    (*step)->Wait(Soon());
  }
  (*step)->TakeStepped(stepped);
  return (*step)->result();
}

// Another attempt finishes it to the same bits, also where a chunk was updated
// and its parameters could not be copied back; each is told of once.
TEST(LateOnADevice, EachCallThatFails) {
  bool untouched = false;
  int again = 0;
  int returned_again = 0;
  for (int64_t fail = 0; !untouched; ++fail) {
    SCOPED_TRACE(absl::StrCat("call ", fail));
    DeviceTraining training(TinyModel(), SmallChunks(), 2, 37);
    training.PlaceAll(0);
    training.DrawGradients(1);
    training.reference().Step({}, training.model());
    bool returning = false;
    training.device(0).set_fault([&](const FakeDevice::Call& call) {
      if (call.index != fail) return absl::OkStatus();
      returning =
          call.kind == FakeDevice::CallKind::kToDevice || call.to_device;
      return absl::InternalError("device: bus error");
    });
    std::vector<int> stepped;
    absl::Status status = LateStepOf(training, &stepped);
    untouched = training.device(0).calls() <= fail;
    training.device(0).set_fault(nullptr);
    EXPECT_EQ(status.ok(), untouched) << status;
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("device: bus error"));
      ++(returning ? returned_again : again);
      status = LateStepOf(training, &stepped);
    }
    ASSERT_TRUE(status.ok()) << status;
    training.Download();
    training.ExpectSame();
    std::sort(stepped.begin(), stepped.end());
    EXPECT_EQ(std::adjacent_find(stepped.begin(), stepped.end()),
              stepped.end());
    EXPECT_THAT(stepped, testing::IsSupersetOf({0, 2, 3, 4}));
  }
  EXPECT_GT(again, 5);
  EXPECT_GT(returned_again, 5);
}

// Copies from a device that are begun may take as long as a disk does.
TEST(LateOnADevice, WhatIsHastenedIsToldBeforeCopiesOfOthersBegin) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    // Chunks are of one dtype.
    Model model = Model::Of({{"awaited", DType::kBFloat16, 4000},
                             {"other", DType::kFloat32, 90000}},
                            43);
    DeviceTraining training(std::move(model), SmallChunks(), 2, seed);
    training.Place(0, 1);
    training.Place(1, 0);
    training.DrawGradients(1);
    training.reference().Step({}, training.model());
    std::vector<int> stepped;
    bool is_under_way = false;
    int others = 0, others_meanwhile = 0;  // copies
    training.device(1).set_fault([&](const FakeDevice::Call& call) {
      is_under_way |= call.kind == FakeDevice::CallKind::kToHost;
      return absl::OkStatus();
    });
    training.device(0).set_fault([&](const FakeDevice::Call& call) {
      const bool begins = call.kind == FakeDevice::CallKind::kToHost;
      others += begins;
      others_meanwhile += begins && is_under_way && stepped.empty();
      return absl::OkStatus();
    });
    auto step =
        training.optimizer().StartLate({}, training.data(), {0, 1}, Soon());
    ASSERT_TRUE(step.ok()) << step.status();
    (*step)->Hasten(0);
    while (!(*step)->Advance()) {
      (*step)->TakeStepped(&stepped);
      (*step)->Wait(Soon());
    }
    (*step)->TakeStepped(&stepped);
    ASSERT_TRUE((*step)->result().ok()) << (*step)->result();
    EXPECT_THAT(stepped, testing::ElementsAre(0, 1));
    EXPECT_TRUE(is_under_way);
    EXPECT_GT(others, 20);
    EXPECT_EQ(others_meanwhile, 0);
    training.Download();
    training.ExpectSame();
  }
}

// What is kept ends with a Reset, and is not given back into another state.
TEST(LateOnADevice, AResetGivesUpWhatWasNotGivenBack) {
  DeviceTraining training(TinyModel(), SmallChunks(), 2, 41);
  training.PlaceAll(0);
  training.DrawGradients(1);
  training.device(0).set_fault([](const FakeDevice::Call& call) {
    return call.kind == FakeDevice::CallKind::kToDevice
               ? absl::InternalError("device: bus error")
               : absl::OkStatus();
  });
  std::vector<int> stepped;
  EXPECT_TRUE(absl::IsInternal(LateStepOf(training, &stepped)));
  EXPECT_TRUE(training.optimizer().incomplete());
  training.device(0).set_fault(nullptr);
  ASSERT_TRUE(training.optimizer().Reset(Soon()).ok());
  EXPECT_FALSE(training.optimizer().incomplete());
  training.StepBoth(1);
}

}  // namespace
}  // namespace terrace
