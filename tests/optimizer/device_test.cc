// Steps of parameters on devices whose memory the CPU cannot reach: the same
// bits as in CPU memory, whenever copies happen, and whatever of them fails.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/step/staging.h"
#include "tests/optimizer/device_training.h"

namespace terrace {
namespace {

using CallKind = FakeDevice::CallKind;

// Some 60,000 elements of all dtypes in chunks of the smallest size.
Model SmallModel() {
  return Model::Of({{"prime", DType::kFloat32, 16411},
                    {"half", DType::kBFloat16, 928},
                    {"one", DType::kFloat32, 1},
                    {"none", DType::kFloat32, 0},
                    {"fp16", DType::kFloat16, 20011},
                    {"half_prime", DType::kBFloat16, 12011}},
                   21);
}

// As many kinds of chunks in fewer elements, for what is done often.
Model TinyModel() {
  return Model::Of({{"prime", DType::kFloat32, 4801},
                    {"none", DType::kFloat32, 0},
                    {"half", DType::kBFloat16, 928},
                    {"fp16", DType::kFloat16, 4111}},
                   23);
}

OptimizerOptions Clipped() {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 1;
  return options;
}

TEST(OptimizerOnADevice, GivesTheBitsOfTheSerialLoop) {
  for (const int threads : {1, 3}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(absl::StrCat(threads, " threads, seed ", seed));
      DeviceTraining training(SmallModel(), Clipped(), threads, seed);
      training.PlaceAll(0);
      for (int64_t step = 1; step <= 3; ++step) {
        training.StepBoth(step, {.loss_scale = 8}, 8);
      }
    }
  }
}

TEST(OptimizerOnADevice, ParametersMayBeOnSeveralDevicesAndInCpuMemory) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    DeviceTraining training(Model::Mixed(seed), Clipped(), 2, seed, 8 << 20);
    for (size_t i = 0; i < training.model().parameters().size(); ++i) {
      training.Place(i, static_cast<int>(i % 3) - 1);
    }
    for (int64_t step = 1; step <= 3; ++step) training.StepBoth(step);
  }
}

TEST(OptimizerOnADevice, ParametersMayMoveBetweenSteps) {
  DeviceTraining training(SmallModel(), Clipped(), 2, 1);
  training.StepBoth(1);
  training.PlaceAll(1);
  training.StepBoth(2);
  training.PlaceAll(0);
  training.StepBoth(3);
  training.PlaceAll(-1);
  training.StepBoth(4);
}

TEST(OptimizerOnADevice, OneWithoutAGradientIsLeftWhereItIs) {
  DeviceTraining training(SmallModel(), Clipped(), 2, 3);
  training.PlaceAll(0);
  training.StepBoth(1);
  training.model().parameters()[0].has_gradient = false;
  training.model().parameters()[4].has_gradient = false;
  training.StepBoth(2);
  training.model().parameters()[4].has_gradient = true;
  training.StepBoth(3);
}

TEST(OptimizerOnADevice, CopiesWhatTheUpdateNeedsAndReportsIt) {
  Model model = Model::Of(
      {{"fp32", DType::kFloat32, 30011}, {"bf16", DType::kBFloat16, 20011}}, 5);
  DeviceTraining training(std::move(model), SmallChunks(), 2, 5);
  training.PlaceAll(0);
  const int64_t gradient_bytes =
      DTypeBytes(training.model().parameters()[1].gradient.dtype());
  for (int64_t step = 1; step <= 2; ++step) {
    training.StepBoth(step);
    const StepReport& report = training.optimizer().last_report();
    EXPECT_EQ(report.bytes_from_devices,
              30011 * 8 + 20011 * (2 + gradient_bytes));
    EXPECT_EQ(report.bytes_to_devices, 30011 * 4 + 20011 * 2);
    EXPECT_EQ(report.staging_bytes, Staging::kSlots * (1 << 20));
  }
}

TEST(OptimizerOnADevice, WhatWasWrittenThereCounts) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    DeviceTraining training(SmallModel(), Clipped(), 2, seed);
    training.PlaceAll(0);
    for (int64_t step = 1; step <= 4; ++step) {
      for (size_t i : {0u, 1u, 4u}) {
        Values& values = training.model().parameters()[i].values;
        for (int64_t j = step; j < values.count(); j += 7 * step) {
          values.Set(j, 0.01f * static_cast<float>(step * j % 100));
        }
        training.reference().AdoptValues(training.model(), i);
        training.Place(i, 0);
      }
      training.StepBoth(step);
    }
  }
}

TEST(OptimizerOnADevice, ASkippedStepCopiesNothingBack) {
  OptimizerOptions options = SmallChunks();
  options.skip_nonfinite = true;
  DeviceTraining training(SmallModel(), options, 2, 9);
  training.PlaceAll(0);
  training.StepBoth(1);
  const Values before = training.model().parameters()[0].values;
  training.model().DrawGradients(2);
  training.model().parameters()[0].gradient.Set(
      16410, std::numeric_limits<float>::infinity());
  training.UploadGradients();
  ASSERT_TRUE(training.Step().ok());
  EXPECT_TRUE(training.optimizer().last_report().skipped);
  EXPECT_EQ(training.optimizer().last_report().bytes_to_devices, 0);
  EXPECT_TRUE(training.model().parameters()[0].values.SameBits(before));
  training.StepBoth(3);
}

// The 1st, 2nd, ... call of a kind fails, until a step needs no more of it. A
// step that failed changed nothing that the next attempt does not finish, bit
// for bit, or says that it did.
TEST(OptimizerOnADevice, EveryFailedCallIsToldAndTheStepCanBeFinished) {
  int finished = 0;
  int returned_again = 0;
  for (const CallKind kind : {CallKind::kAllocatePinned, CallKind::kMakeStream,
                              CallKind::kSynchronize, CallKind::kToHost,
                              CallKind::kToDevice, CallKind::kWait}) {
    bool untouched = false;
    int64_t fail = 0;
    for (; !untouched; ++fail) {
      SCOPED_TRACE(
          absl::StrCat("kind ", static_cast<int>(kind), ", call ", fail));
      DeviceTraining training(TinyModel(), Clipped(), 2, 11);
      training.PlaceAll(0);
      training.DrawGradients(1);
      training.reference().Step({}, training.model());
      int64_t calls = 0;
      bool returning = false;
      training.device(0).set_fault([&](const FakeDevice::Call& call) {
        if (call.kind != kind || calls++ != fail) return absl::OkStatus();
        returning = call.kind == CallKind::kToDevice || call.to_device;
        return absl::InternalError("device: bus error");
      });
      const absl::Status status = training.Step();
      training.device(0).set_fault(nullptr);
      if (status.ok()) {
        untouched = calls <= fail;
        ASSERT_TRUE(untouched) << "a failed call was not told";
      } else {
        EXPECT_THAT(std::string(status.message()),
                    testing::HasSubstr("device: bus error"));
        EXPECT_TRUE(absl::IsInternal(status)) << status;
        ++(returning ? returned_again : finished);
        const absl::Status again = training.Step();
        ASSERT_TRUE(again.ok()) << again;
      }
      training.ExpectSame();
      training.StepBoth(2);
    }
    EXPECT_GT(fail, 1) << "the step made no call of this kind";
  }
  EXPECT_GT(finished, 10);
  EXPECT_GT(returned_again, 5);
}

TEST(OptimizerOnADevice, AFailedNormChangesNothing) {
  DeviceTraining training(SmallModel(), Clipped(), 2, 13);
  training.PlaceAll(0);
  training.DrawGradients(1);
  const Values before = training.model().parameters()[0].values;
  training.device(0).set_fault([](const FakeDevice::Call& call) {
    return call.kind == CallKind::kWait ? absl::InternalError("bus")
                                        : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsInternal(training.Step()));
  EXPECT_FALSE(training.optimizer().incomplete());
  EXPECT_TRUE(training.model().parameters()[0].values.SameBits(before));
  training.device(0).set_fault(nullptr);
  training.StepBoth(2);
}

TEST(OptimizerOnADevice, ADeviceThatIsGoneEndsTheOptimizerWithAWord) {
  DeviceTraining training(SmallModel(), SmallChunks(), 2, 15);
  training.PlaceAll(0);
  training.StepBoth(1);
  training.DrawGradients(2);
  training.device(0).set_fault([](const FakeDevice::Call& call) {
    return call.kind == CallKind::kSynchronize ? absl::OkStatus()
                                               : absl::InternalError("gone");
  });
  EXPECT_TRUE(absl::IsInternal(training.Step()));
  const absl::Status status = training.Step();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("could not be read again"));
}

// Its first attempt has told the gradients; the second need not read them
// again, and must not mind when it could not.
TEST(OptimizerOnADevice, GoesAwayForAnAttemptAndComesBack) {
  DeviceTraining training(SmallModel(), SmallChunks(), 2, 19);
  training.PlaceAll(0);
  training.StepBoth(1);
  training.DrawGradients(2);
  training.reference().Step({}, training.model());
  int copies = 0;
  training.device(0).set_fault([&](const FakeDevice::Call& call) {
    return call.kind == CallKind::kToHost && copies++ == 0
               ? absl::InternalError("bus")
               : absl::OkStatus();
  });
  ASSERT_TRUE(absl::IsInternal(training.Step()));
  // Recognises the gradients, and from then on copies nothing.
  int gradients = 0;
  for (size_t i = 0; i < training.model().parameters().size(); ++i) {
    gradients += training.model().parameters()[i].spec.count > 0 ? 1 : 0;
  }
  copies = 0;
  training.device(0).set_fault([&](const FakeDevice::Call& call) {
    if (call.kind != CallKind::kToHost) return absl::OkStatus();
    return copies++ >= gradients ? absl::InternalError("gone")
                                 : absl::OkStatus();
  });
  ASSERT_TRUE(absl::IsInternal(training.Step()));
  EXPECT_GT(copies, gradients);
  training.device(0).set_fault(nullptr);
  const absl::Status again = training.Step();
  ASSERT_TRUE(again.ok()) << again;
  training.ExpectSame();
  training.StepBoth(3);
}

TEST(OptimizerOnADevice, AnIncompleteStepStaysWhereItsParametersWere) {
  DeviceTraining training(SmallModel(), SmallChunks(), 2, 17);
  training.PlaceAll(0);
  training.DrawGradients(1);
  training.reference().Step({}, training.model());
  int failures = 0;
  training.device(0).set_fault([&](const FakeDevice::Call& call) {
    return call.kind == CallKind::kToHost && failures++ == 0
               ? absl::InternalError("bus")
               : absl::OkStatus();
  });
  ASSERT_FALSE(training.Step().ok());
  ASSERT_TRUE(training.optimizer().incomplete());
  std::vector<ParameterData> elsewhere = training.data();
  elsewhere[0].device = &training.device(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      training.optimizer().Step({}, elsewhere, Soon())));
  ASSERT_TRUE(training.Step().ok());
  training.ExpectSame();
}

}  // namespace
}  // namespace terrace
