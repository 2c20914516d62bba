// Tensors of the racing device that a test uses, evicts and brings again by
// hand, as whoever keeps the rules of stream_uses.h does.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/accelerator/stream_uses.h"
#include "tests/libtorch/accelerator/racing_device.h"

namespace terrace {

inline constexpr StreamId kHome = 0;
inline constexpr StreamId kSide = 1;
inline constexpr int64_t kTensorBytes = 256;

struct StreamedTensor {
  explicit StreamedTensor(StreamRules rules) : uses(rules) {}

  StreamId home = kHome;
  StreamUses uses;
  std::unique_ptr<RacingDevice::Block> block;  // null: evicted
  std::vector<std::byte> below = std::vector<std::byte>(kTensorBytes);
  bool is_written = true;
  std::shared_ptr<DeviceEvent> written_back;
};

class StreamWorld {
 public:
  // What they forbid is found at the world's end; with one switched off,
  // something has to be.
  explicit StreamWorld(StreamRules rules = {}, bool is_race_expected = false)
      : rules_(rules), is_race_expected_(is_race_expected) {
    RacingDevice::SetCurrent(kHome);
  }
  ~StreamWorld() {
    tensors_.clear();
    EXPECT_EQ(device_.races().empty(), !is_race_expected_)
        << testing::PrintToString(device_.races());
  }

  // Filled with the value on its home stream.
  StreamedTensor& Add(std::byte value) {
    auto tensor = std::make_unique<StreamedTensor>(rules_);
    tensor->block = device_.Allocate(kTensorBytes, kHome);
    device_.Fill(*tensor->block, kHome, value);
    Expect(tensor->uses.Begin(device_, kHome, nullptr));
    tensors_.push_back(std::move(tensor));
    return *tensors_.back();
  }

  // One operation's look at the tensor, on the stream.
  absl::Status Use(StreamedTensor& tensor, StreamId stream, bool is_written) {
    RacingDevice::SetCurrent(stream);
    if (tensor.block == nullptr) Bring(tensor);
    absl::Status status = tensor.uses.Use(device_, *tensor.block, stream,
                                          device_.IsCapturing(stream));
    if (status.ok() && is_written) tensor.is_written = true;
    RacingDevice::SetCurrent(kHome);
    return status;
  }
  std::byte Read(StreamedTensor& tensor, StreamId stream = kHome) {
    Expect(Use(tensor, stream, /*is_written=*/false));
    return device_.Read(*tensor.block, stream);
  }
  void Fill(StreamedTensor& tensor, std::byte value, StreamId stream = kHome) {
    Expect(Use(tensor, stream, /*is_written=*/true));
    device_.Fill(*tensor.block, stream, value);
  }

  void Bring(StreamedTensor& tensor) {
    auto block = device_.Allocate(kTensorBytes, tensor.home);
    if (tensor.written_back != nullptr) {
      Expect(device_.Wait(*std::exchange(tensor.written_back, nullptr)));
    }
    Expect(
        tensor.uses.BeginCopy(device_, tensor.home, RacingDevice::kToDevice));
    device_.CopyUp(*block, tensor.below.data());
    Expect(tensor.uses.Begin(device_, tensor.home,
                             *device_.Record(RacingDevice::kToDevice)));
    tensor.block = std::move(block);
  }
  // False: it has to stay.
  bool Evict(StreamedTensor& tensor) {
    if (!MayGo(tensor)) return false;
    if (tensor.is_written) {
      Expect(tensor.block->RecordUse(RacingDevice::kToHost));
      CopyDown(tensor);
    }
    tensor.block.reset();
    return true;
  }
  // The bytes below are those of the device, which keeps its own.
  void WriteBack(StreamedTensor& tensor) {
    ASSERT_TRUE(MayGo(tensor));
    CopyDown(tensor);
    Expect(tensor.uses.Begin(device_, tensor.home, tensor.written_back));
  }
  // The next of that size on that stream, by somebody who writes to it.
  std::unique_ptr<RacingDevice::Block> AllocateAndFill() {
    auto block = device_.Allocate(kTensorBytes, kHome);
    device_.Fill(*block, kHome, std::byte{0xEE});
    return block;
  }
  // What `stream` is given from here on comes after what `other` was given.
  void Order(StreamId other, StreamId stream) {
    Expect(device_.Await(stream, **device_.Record(other)));
  }

  RacingDevice& device() { return device_; }

 private:
  static void Expect(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }
  bool MayGo(StreamedTensor& tensor) {
    const Hindrance hindrance = tensor.uses.FindHindrance(device_);
    if (hindrance != Hindrance::kUnfinished) {
      return hindrance == Hindrance::kNone;
    }
    Expect(tensor.uses.AwaitCollectives(device_));
    return true;
  }
  void CopyDown(StreamedTensor& tensor) {
    Expect(tensor.uses.AwaitUses(device_, RacingDevice::kToHost));
    device_.CopyDown(tensor.below.data(), *tensor.block);
    tensor.written_back = *device_.Record(RacingDevice::kToHost);
    tensor.is_written = false;
  }

  const StreamRules rules_;
  const bool is_race_expected_;
  RacingDevice device_;
  std::vector<std::unique_ptr<StreamedTensor>> tensors_;
};

}  // namespace terrace
