// A model some of whose parameters are on devices, and its reference.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/optimizer/training.h"
#include "tests/support/fake_device.h"

namespace terrace {

inline std::vector<std::byte> BytesOf(const Values& values) {
  const auto* const begin = static_cast<const std::byte*>(values.data());
  return {begin, begin + values.count() * DTypeBytes(values.dtype())};
}

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
    place.parameter = place.device->Take(parameter.spec.count * 4);
    place.gradient = place.device->Take(parameter.spec.count * 4);
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

}  // namespace terrace
