// A window over the racing device, and tensors that a test uses by hand.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/accelerator/device_tensor.h"
#include "libtorch/accelerator/device_window.h"
#include "libtorch/accelerator/relief_port.h"
#include "tests/libtorch/accelerator/racing_device.h"

namespace terrace {

inline constexpr StreamId kHome = 0;
inline constexpr StreamId kSide = 1;
inline constexpr int64_t kTensorBytes = 256;

struct WorldTensor {
  std::shared_ptr<DeviceTensor> tensor;
  RacingPlace* place;
  RacingBelow* below;

  bool is_here() const { return place->address() != nullptr; }
};

class DeviceWorld {
 public:
  explicit DeviceWorld(int64_t limit_bytes = INT64_MAX,
                       int64_t budget_bytes = INT64_MAX)
      : device_(limit_bytes),
        window_(device_,
                {.budget_bytes = budget_bytes, .segment_bytes = kTensorBytes}) {
    device_.SetPort(&port_);
    EXPECT_TRUE(port_.Attach(&window_));
    RacingDevice::SetCurrent(kHome);
  }
  ~DeviceWorld() {
    port_.Detach();
    for (const WorldTensor& each : tensors_) {
      EXPECT_TRUE(window_.Remove(*each.tensor)) << each.tensor->name();
    }
    EXPECT_THAT(device_.races(), testing::IsEmpty());
    for (const WorldTensor& each : tensors_) {
      EXPECT_EQ(each.below->let_go_early(), 0) << each.tensor->name();
    }
  }

  // Filled with the value on its home stream.
  WorldTensor Add(const std::string& name, std::byte value,
                  StreamId home = kHome) {
    auto block = device_.Allocate(kTensorBytes, home);
    EXPECT_TRUE(block.ok()) << block.status();
    std::byte* const address = (*block)->address();
    auto place = std::make_unique<RacingPlace>(device_, *std::move(block));
    auto below = std::make_unique<RacingBelow>(device_, kTensorBytes);
    WorldTensor made{nullptr, place.get(), below.get()};
    made.tensor = std::make_shared<DeviceTensor>(
        name, kTensorBytes, home, std::move(place), std::move(below));
    device_.Fill(address, home, value);
    EXPECT_TRUE(window_.Add(made.tensor).ok());
    tensors_.push_back(made);
    return made;
  }

  // One operation on the stream.
  absl::Status Begin(const WorldTensor& tensor, StreamId stream,
                     bool is_written) {
    RacingDevice::SetCurrent(stream);
    tensor.tensor->word().Pin();
    absl::Status status = window_.Fetch(*tensor.tensor);
    if (status.ok()) {
      status = window_.Use(*tensor.tensor, is_written, window_.IsCapturing());
    }
    return status;
  }
  void End(const WorldTensor& tensor) {
    tensor.tensor->word().Unpin();
    RacingDevice::SetCurrent(kHome);
  }
  std::byte Read(const WorldTensor& tensor, StreamId stream = kHome) {
    const absl::Status status = Begin(tensor, stream, /*is_written=*/false);
    EXPECT_TRUE(status.ok()) << status;
    const std::byte value = status.ok()
                                ? device_.Read(tensor.place->address(), stream)
                                : std::byte{0};
    End(tensor);
    return value;
  }
  void Fill(const WorldTensor& tensor, std::byte value,
            StreamId stream = kHome) {
    const absl::Status status = Begin(tensor, stream, /*is_written=*/true);
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) device_.Fill(tensor.place->address(), stream, value);
    End(tensor);
  }
  // Where the bytes below are those of the device.
  void MakeClean() {
    const absl::Status status = window_.WriteBack();
    EXPECT_TRUE(status.ok()) << status;
  }
  // The next of that size on that stream, by somebody who writes to it.
  std::unique_ptr<DeviceBlock> AllocateAndFill(StreamId home = kHome) {
    auto block = device_.Allocate(kTensorBytes, home);
    EXPECT_TRUE(block.ok()) << block.status();
    if (!block.ok()) return nullptr;
    device_.Fill((*block)->address(), home, std::byte{0xEE});
    return *std::move(block);
  }

  RacingDevice& device() { return device_; }
  DeviceWindow& window() { return window_; }
  ReliefPort& port() { return port_; }

 private:
  RacingDevice device_;
  ReliefPort port_;
  DeviceWindow window_;
  std::vector<WorldTensor> tensors_;
};

}  // namespace terrace
