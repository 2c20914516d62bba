// A runtime's tier in the memory of LibTorch's allocator, on the tests'
// accelerator: bytes come and go as they are, and what a rule forbids is
// reported as soon as the rule is off.
#include "libtorch/torch_device.h"

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/accelerator/stream_rules.h"
#include "tests/libtorch/accelerator/device/accelerator_fixture.h"
#include "tests/libtorch/accelerator/device/registered_memory.h"

namespace terrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBytes = 1 << 20;

class TorchDeviceTest : public AcceleratorTest {
 protected:
  ~TorchDeviceTest() override { StreamRules::SetForTest({}); }

  static absl::Status WaitFor(Device::Stream& stream) {
    std::vector<absl::Status> ended;
    while (ended.empty()) stream.Poll(&ended);
    return ended.front();
  }
  static std::vector<std::byte> Numbers() {
    std::vector<std::byte> bytes(kBytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7);
    }
    return bytes;
  }
};

TEST_F(TorchDeviceTest, BytesComeAndGo) {
  for (const bool is_pinned : {false, true}) {
    SCOPED_TRACE(is_pinned);
    const RegisteredMemory extras(is_pinned);
    const std::unique_ptr<Device> device = MakeTorchDevice(kDevice);
    EXPECT_EQ(device->name(), "testdev:0");
    const DeviceMemory memory = *device->Allocate(kBytes);
    const auto up = *device->MakeStream();
    const auto down = *device->MakeStream();
    const auto host = std::make_shared<std::vector<std::byte>>(Numbers());
    const absl::StatusOr<PinnedMapping> pinned =
        device->Pin(host, absl::MakeSpan(*host));
    EXPECT_EQ(pinned.ok(), is_pinned) << pinned.status();
    ASSERT_TRUE(up->CopyToDevice(memory.get(), host->data(), kBytes).ok());
    ASSERT_TRUE(WaitFor(*up).ok());
    std::memset(host->data(), 0, kBytes);
    ASSERT_TRUE(down->CopyToHost(host->data(), memory.get(), kBytes).ok());
    ASSERT_TRUE(WaitFor(*down).ok());
    EXPECT_EQ(*host, Numbers());
  }
}

TEST_F(TorchDeviceTest, TellsOfTheEndOfCopiesByACall) {
  const std::unique_ptr<Device> device = MakeTorchDevice(kDevice);
  const DeviceMemory memory = *device->Allocate(kBytes);
  const auto up = *device->MakeStream();
  const std::vector<std::byte> host = Numbers();
  ASSERT_TRUE(up->CopyToDevice(memory.get(), host.data(), kBytes).ok());
  std::mutex mutex;
  std::condition_variable called;
  bool is_called = false;
  ASSERT_TRUE(up->OnDone([&] {
                  const std::lock_guard lock(mutex);
                  is_called = true;
                  called.notify_all();
                }).ok());
  std::unique_lock lock(mutex);
  called.wait(lock, [&] { return is_called; });
  std::vector<absl::Status> ended;
  up->Poll(&ended);
  EXPECT_EQ(ended.size(), 1);
}

TEST_F(TorchDeviceTest, WhatTheDeviceHasNotIsResourceExhausted) {
  TheAccelerator().memory(0).SetLimit(kBytes);
  const std::unique_ptr<Device> device = MakeTorchDevice(kDevice);
  const absl::Status full = device->Allocate(2 * kBytes).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("testdev:0"));
}

// The block that the allocator gives may be what the program's stream still
// uses.
TEST_F(TorchDeviceTest, ACopyComesAfterTheAllocation) {
  const auto copy_to_a_new_block = [] {
    const std::unique_ptr<Device> device = MakeTorchDevice(kDevice);
    at::empty({kBytes}, OnDevice(at::kByte)).fill_(1);  // and its end
    const DeviceMemory memory = *device->Allocate(kBytes);
    const auto up = *device->MakeStream();
    const std::vector<std::byte> host = Numbers();
    EXPECT_TRUE(up->CopyToDevice(memory.get(), host.data(), kBytes).ok());
    EXPECT_TRUE(WaitFor(*up).ok());
  };
  copy_to_a_new_block();
  EXPECT_THAT(TakeReports(), IsEmpty());
  StreamRules::SetForTest(
      StreamRules().Without(StreamRule::kCopyWaitsForAllocation));
  copy_to_a_new_block();
  EXPECT_THAT(TakeReports(), Contains(HasSubstr("copy")));
}

}  // namespace
}  // namespace terrace
