// The CPU's memory in a device's place, so that the hook of devices is tested
// with LibTorch's own operations where there is no device: its allocator's
// blocks, one stream that has always done everything, and a capture that a test
// declares. Each allocation asks the relief's port first, as if it missed.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/accelerator/device_storage.h"
#include "libtorch/accelerator/relief_port.h"

namespace terrace {

class MemoryAsDevice final : public TorchStreamedDevice {
 public:
  ReliefPort& port() { return port_; }
  void SetCapturing(bool is_capturing) { is_capturing_ = is_capturing; }
  // Each miss comes near the limit.
  void SetTight(bool is_tight) { is_tight_ = is_tight; }
  void SetFull(bool is_full) { is_full_ = is_full; }
  void SetStream(StreamId stream) { stream_ = stream; }
  int64_t waits_for_all() const { return waits_for_all_; }
  const std::vector<StreamId>& recorded() const { return recorded_; }

  c10::Device device() const override { return c10::Device(c10::kCPU); }
  bool Made(const c10::DataPtr& data) const override {
    return data.get_deleter() == c10::GetCPUAllocator()->raw_deleter();
  }
  absl::Status RecordUse(const c10::DataPtr& data, StreamId stream) override {
    EXPECT_TRUE(Made(data));  // the real one ignores any other
    recorded_.push_back(stream);
    return absl::OkStatus();
  }

  StreamId CurrentStream() override { return stream_; }
  StreamId CopyStream(CopyDirection direction) const override {
    return direction == CopyDirection::kToDevice ? 100 : 101;
  }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId) override {
    return std::make_shared<DeviceEvent>();
  }
  absl::Status Await(StreamId, DeviceEvent&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> IsDone(DeviceEvent&) override { return true; }
  absl::Status Wait(DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status WaitForAll() override {
    ++waits_for_all_;
    return absl::OkStatus();
  }
  bool IsCapturing(StreamId) override { return is_capturing_; }

  absl::StatusOr<std::unique_ptr<DeviceBlock>> Allocate(
      int64_t bytes, StreamId /*home*/) override {
    port_.Relieve();
    if (is_full_) return absl::ResourceExhaustedError("out of memory");
    return std::make_unique<DataPtrBlock>(
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes)));
  }
  absl::Status Copy(CopyDirection, std::byte* target, const std::byte* source,
                    int64_t bytes) override {
    std::memcpy(target, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  Usage usage() override {
    Usage usage;
    if (is_tight_) usage.reserved_bytes = INT64_MAX;
    return usage;
  }

 private:
  ReliefPort port_;
  std::atomic<bool> is_capturing_ = false;
  std::atomic<bool> is_tight_ = false;
  std::atomic<bool> is_full_ = false;
  std::atomic<StreamId> stream_ = 0;
  std::atomic<int64_t> waits_for_all_ = 0;
  std::vector<StreamId> recorded_;  // one thread
};

}  // namespace terrace
