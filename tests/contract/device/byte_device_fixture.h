// The base of the contract tests of queues of bytes at a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "terrace/byte_queue.h"
#include "tests/contract/device/device_contract_fixture.h"

namespace terrace {

class DeviceByteQueues : public DeviceContractTest {
 protected:
  // Budgets of that many pages' tensors, and all of the device promised.
  void Open(int on_device, int in_memory, TestRuntimeOptions options = {}) {
    Make(on_device, in_memory, options);
    queue_ = OpenAt(kHbm, on_device);
  }
  std::unique_ptr<ByteQueue> OpenAt(const char* tier, int places) {
    auto queue = runtime().OpenBytes(places * kPlace, tier);
    EXPECT_TRUE(queue.ok()) << queue.status();
    return queue.ok() ? *std::move(queue) : nullptr;
  }
  static absl::StatusOr<std::vector<Pin>> Answer(ByteQueue& queue,
                                                 uint64_t request, Time late) {
    while (true) {
      auto news = queue.Await(request, late);
      if (!news.ok()) return news.status();
      if (news->pins.has_value()) return *std::move(news->pins);
    }
  }
  absl::StatusOr<Pin> Try(ByteQueue& queue, TensorId tensor, Access access,
                          std::vector<uint64_t> in_use = {}) {
    const Want want{tensor, access};
    const auto request = queue.Push({&want, 1}, in_use, Soon());
    if (!request.ok()) return request.status();
    auto pins = Answer(queue, *request, Soon());
    if (!pins.ok()) return pins.status();
    return std::move(pins->front());
  }
  Pin Have(ByteQueue& queue, TensorId tensor, Access access) {
    absl::StatusOr<Pin> pin = Try(queue, tensor, access);
    EXPECT_TRUE(pin.ok()) << pin.status();
    return pin.ok() ? *std::move(pin) : Pin();
  }
  TensorId Written(const std::string& name, uint8_t seed) {
    const TensorId id = world().Register(name, kPage);
    Pin pin = Have(*queue_, id, Access::kOverwrite);
    if (pin.valid()) world().Write(pin, seed);
    pin.Release();
    return id;
  }
  std::vector<TensorId> WrittenMany(int count) {
    std::vector<TensorId> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(Written(absl::StrCat("t", i), static_cast<uint8_t>(i)));
    }
    return ids;
  }
  bool Holds(ByteQueue& queue, TensorId tensor, uint8_t seed) {
    Pin pin = Have(queue, tensor, Access::kRead);
    const bool has = pin.valid() && world().Has(pin, seed);
    if (pin.valid()) pin.ReleaseUnchanged();
    return has;
  }
  bool Waits(ByteQueue& queue, uint64_t request) {
    stats();
    return absl::IsDeadlineExceeded(
        queue.Await(request, world().Now()).status());
  }
  std::vector<uint64_t> Recalls(ByteQueue& queue) {
    auto recalls = queue.AwaitRecalls(Soon());
    EXPECT_TRUE(recalls.ok()) << recalls.status();
    return recalls.value_or(std::vector<uint64_t>());
  }

  std::unique_ptr<ByteQueue> queue_;
};

}  // namespace terrace
