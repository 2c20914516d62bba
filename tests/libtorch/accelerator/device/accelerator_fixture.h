// Tensors of the tests' accelerator, with streams that are late. A test that
// leaves a report behind fails.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/accelerator/torch/accelerator.h"

namespace terrace {

class AcceleratorTest : public testing::Test {
 public:
  static DeviceStreams& streams() { return TheAccelerator().streams(); }
  static void WaitForAll() {
    for (c10::DeviceIndex at = 0; at < Accelerator::kDevices; ++at) {
      TheAccelerator().WaitForDevice(at);
    }
  }
  static std::vector<std::string> TakeReports() {
    return TheAccelerator().TakeReports();
  }
  // Time passes: no race would show, and nothing is known to be over.
  static void Pass() {
    for (const c10::Stream& stream : {c10::Stream(kHome), kSide}) {
      streams().WaitUnseen(streams().Record(TheAccelerator().Of(stream)).task);
    }
  }
  static void Order(const c10::Stream& before, const c10::Stream& after) {
    c10::Event event(c10::DeviceType::PrivateUse1);
    event.record(before);
    event.block(after);
  }
  static at::TensorOptions OnDevice(at::ScalarType dtype = at::kFloat) {
    return at::TensorOptions().device(kDevice).dtype(dtype);
  }

  static inline const c10::Device kDevice = AcceleratorDevice(0);
  static inline const c10::Device kOther = AcceleratorDevice(1);
  static inline const c10::Stream kHome{c10::Stream::DEFAULT, kDevice};
  static inline const c10::Stream kSide{c10::Stream::UNSAFE, kDevice, 1};

 protected:
  AcceleratorTest() {
    at::set_num_threads(1);  // as the streams' kernels have
    streams().SetDelays(/*seed=*/7, /*longest=*/6);
    TakeReports();
  }
  ~AcceleratorTest() override {
    WaitForAll();
    for (c10::DeviceIndex at = 0; at < Accelerator::kDevices; ++at) {
      TheAccelerator().memory(at).SetLimit(Accelerator::kUsualLimitBytes);
      TheAccelerator().memory(at).EmptyCache();
    }
    EXPECT_THAT(TakeReports(), testing::IsEmpty());
  }
};

}  // namespace terrace
