// Steps of parameters on devices whose memory the CPU cannot reach: the same
// bits as in CPU memory, whenever copies happen, and whatever of them fails.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/optimizer/staging.h"
#include "tests/runtime/optimizer/training.h"
#include "tests/support/fake_device.h"

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

std::vector<std::byte> BytesOf(const Values& values) {
  const auto* const begin = static_cast<const std::byte*>(values.data());
  return {begin, begin + values.count() * DTypeBytes(values.dtype())};
}

// A model some of whose parameters are on devices, and its reference.
class DeviceTraining {
 public:
  DeviceTraining(Model model, const OptimizerOptions& options, int threads,
                 uint64_t seed, int64_t budget_bytes = 512 << 10)
      : model_(std::move(model)),
        reference_(model_, options),
        executor_(*MakePoolExecutor(threads, {})),
        runtime_({.budget_bytes = budget_bytes, .seed = seed}, SystemClock(),
                 *executor_) {
    for (int i = 0; i < 2; ++i) {
      devices_.push_back(std::make_unique<FakeDevice>(absl::StrCat("fake:", i),
                                                      4 << 20, seed * 2 + i));
    }
    places_.resize(model_.parameters().size());
    optimizer_ = *OffloadedOptimizer::Create(runtime_, model_.specs(), options);
  }
  ~DeviceTraining() {
    EXPECT_THAT(runtime_.violations(), testing::IsEmpty());
    EXPECT_EQ(runtime_.pins(), 0);
    for (const auto& device : devices_) {
      EXPECT_THAT(device->violations(), testing::IsEmpty());
    }
  }

  // Moves parameter `index`; device -1 is CPU memory.
  void Place(size_t index, int device) {
    Placement& place = places_[index];
    const ModelParameter& parameter = model_.parameters()[index];
    place.device = nullptr;
    if (device < 0) return;
    place.device = devices_[static_cast<size_t>(device)].get();
    place.parameter = place.device->Allocate(parameter.spec.count * 4);
    place.gradient = place.device->Allocate(parameter.spec.count * 4);
    place.device->QueueWrite(place.parameter, BytesOf(parameter.values));
  }
  void PlaceAll(int device) {
    for (size_t i = 0; i < places_.size(); ++i) Place(i, device);
  }

  std::vector<ParameterData> data() {
    std::vector<ParameterData> data = model_.data();
    for (size_t i = 0; i < data.size(); ++i) {
      if (places_[i].device == nullptr) continue;
      data[i].device = places_[i].device;
      data[i].parameter = places_[i].parameter;
      if (data[i].gradient != nullptr) data[i].gradient = places_[i].gradient;
    }
    return data;
  }
  void DrawGradients(int64_t step, float scale = 1) {
    model_.DrawGradients(step, scale);
    UploadGradients();
  }
  void UploadGradients() {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].device == nullptr) continue;
      places_[i].device->QueueWrite(places_[i].gradient,
                                    BytesOf(model_.parameters()[i].gradient));
    }
  }
  // Brings the model's values from the devices.
  void Download() {
    for (size_t i = 0; i < places_.size(); ++i) {
      Values& values = model_.parameters()[i].values;
      const int64_t bytes = values.count() * DTypeBytes(values.dtype());
      if (places_[i].device == nullptr || bytes == 0) continue;
      const std::vector<std::byte> read =
          places_[i].device->Read(places_[i].parameter, bytes);
      std::memcpy(values.data(), read.data(), read.size());
    }
  }
  absl::Status Step(const StepArguments& arguments = {}) {
    absl::Status status = optimizer_->Step(arguments, data(), Soon());
    Download();
    return status;
  }
  void StepBoth(int64_t step, const StepArguments& arguments = {},
                float scale = 1) {
    DrawGradients(step, scale);
    reference_.Step(arguments, model_);
    const absl::Status status = Step(arguments);
    ASSERT_TRUE(status.ok()) << status;
    ExpectSame();
  }
  void ExpectSame() {
    EXPECT_EQ(reference_.Difference(model_), "");
    EXPECT_EQ(reference_.StateDifference(*optimizer_), "");
  }

  Model& model() { return model_; }
  ReferenceOptimizer& reference() { return reference_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }
  FakeDevice& device(size_t index) { return *devices_[index]; }

 private:
  struct Placement {
    FakeDevice* device = nullptr;
    void* parameter = nullptr;
    void* gradient = nullptr;
  };

  Model model_;
  ReferenceOptimizer reference_;
  std::unique_ptr<Executor> executor_;
  MapRuntime runtime_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::vector<Placement> places_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

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
  // The first step makes the master from the parameter; later ones have it.
  training.StepBoth(1);
  const StepReport first = training.optimizer().last_report();
  EXPECT_EQ(first.bytes_from_devices, 30011 * 8 + 20011 * (2 + gradient_bytes));
  training.StepBoth(2);
  const StepReport& second = training.optimizer().last_report();
  EXPECT_EQ(second.bytes_from_devices, 30011 * 8 + 20011 * gradient_bytes);
  EXPECT_EQ(second.bytes_to_devices, 30011 * 4 + 20011 * 2);
  EXPECT_EQ(second.staging_bytes, Staging::kSlots * (1 << 20));
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

// The 1st, 2nd, ... call of the device fails, until a step needs no more. A
// step that failed changed nothing that the next attempt does not finish, bit
// for bit, or says that it did.
TEST(OptimizerOnADevice, EveryFailedCallIsToldAndTheStepCanBeFinished) {
  std::set<CallKind> seen;
  int finished = 0;
  int lost = 0;
  bool untouched = false;
  for (int64_t fail = 0; !untouched; ++fail) {
    SCOPED_TRACE(absl::StrCat("call ", fail));
    DeviceTraining training(TinyModel(), Clipped(), 2, 11);
    training.PlaceAll(0);
    training.DrawGradients(1);
    training.reference().Step({}, training.model());
    CallKind failed{};
    bool returning = false;
    training.device(0).set_fault([&](const FakeDevice::Call& call) {
      if (call.index != fail) return absl::OkStatus();
      failed = call.kind;
      returning = call.kind == CallKind::kToDevice || call.to_device;
      return absl::InternalError("device: bus error");
    });
    const absl::Status status = training.Step();
    training.device(0).set_fault(nullptr);
    if (status.ok()) {
      untouched = training.device(0).calls() <= fail;
      ASSERT_TRUE(untouched) << "a failed call was not told";
    } else {
      seen.insert(failed);
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("device: bus error"));
      EXPECT_EQ(absl::IsDataLoss(status), returning) << status;
      if (returning) {
        ++lost;
        EXPECT_TRUE(absl::IsDataLoss(training.Step()));
        continue;
      }
      ++finished;
      const absl::Status again = training.Step();
      ASSERT_TRUE(again.ok()) << again;
    }
    training.ExpectSame();
    training.StepBoth(2);
  }
  EXPECT_EQ(seen.size(), 6u);  // of every kind
  EXPECT_GT(finished, 10);
  EXPECT_GT(lost, 5);
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
