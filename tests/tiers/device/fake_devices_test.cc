// That the fakes find out what they are made to find out.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_worlds.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;

class VirtualDeviceTest : public testing::Test {
 protected:
  static VirtualDeviceOptions Timed() {
    VirtualDeviceOptions options;
    options.to_device_rate = static_cast<double>(kMiB) * 1000;  // 1 MiB a ms
    options.to_host_rate = static_cast<double>(kMiB) * 2000;
    options.copy_time = absl::Milliseconds(3);
    return options;
  }
  void SetUp() override { Make(Timed()); }
  void Make(const VirtualDeviceOptions& options) {
    memory_ = nullptr;
    device_ = std::make_unique<VirtualDevice>(clock_, options);
    memory_ = *device_->Allocate(8 * kMiB);
  }
  std::unique_ptr<Device::Stream> MakeStream() {
    return *device_->MakeStream();
  }
  absl::Duration TimeOf(Device::Stream& stream) {
    const absl::Time start = clock_.Now();
    EXPECT_TRUE(stream.Wait().ok());
    return clock_.Now() - start;
  }

  VirtualClock clock_;
  std::unique_ptr<VirtualDevice> device_;
  DeviceMemory memory_;
  std::vector<std::byte> host_ = std::vector<std::byte>(8 * kMiB, std::byte{1});
};

TEST_F(VirtualDeviceTest, ACopyTakesItsOwnTimeAndThatOfItsBytes) {
  const auto stream = MakeStream();
  ASSERT_TRUE(stream->CopyToDevice(memory_.get(), host_.data(), 4 * kMiB).ok());
  EXPECT_EQ(TimeOf(*stream), absl::Milliseconds(3 + 4));
  ASSERT_TRUE(stream->CopyToHost(host_.data(), memory_.get(), 4 * kMiB).ok());
  EXPECT_EQ(TimeOf(*stream), absl::Milliseconds(3 + 2));
}

TEST_F(VirtualDeviceTest, UseBeforeTheEndGivesWrongBytes) {
  const auto stream = MakeStream();
  ASSERT_TRUE(stream->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  host_[5] = std::byte{2};  // too early: the device takes it
  ASSERT_TRUE(stream->Wait().ok());
  std::vector<std::byte> back(kMiB, std::byte{7});
  ASSERT_TRUE(stream->CopyToHost(back.data(), memory_.get(), kMiB).ok());
  EXPECT_EQ(back[5], std::byte{0xFF});
  ASSERT_TRUE(stream->Wait().ok());
  EXPECT_EQ(back[5], std::byte{2});
  EXPECT_EQ(back[6], std::byte{1});
}

TEST_F(VirtualDeviceTest, ADirectionServesOneStreamAtATimeBothAtOnce) {
  const auto one = MakeStream();
  const auto two = MakeStream();
  const auto up = MakeStream();
  const absl::Time start = clock_.Now();
  ASSERT_TRUE(one->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  ASSERT_TRUE(two->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  ASSERT_TRUE(up->CopyToHost(host_.data() + kMiB,
                             static_cast<std::byte*>(memory_.get()) + kMiB,
                             2 * kMiB)
                  .ok());
  EXPECT_TRUE(up->Wait().ok());
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(4));
  EXPECT_TRUE(two->Wait().ok());
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(8));
  EXPECT_TRUE(one->Wait().ok());
}

TEST_F(VirtualDeviceTest, OneDirectionSlowsTheOther) {
  VirtualDeviceOptions options = Timed();
  options.duplex_factor = 0.5;
  Make(options);
  const auto down = MakeStream();
  const auto up = MakeStream();
  ASSERT_TRUE(down->CopyToDevice(memory_.get(), host_.data(), 4 * kMiB).ok());
  ASSERT_TRUE(up->CopyToHost(host_.data() + 4 * kMiB,
                             static_cast<std::byte*>(memory_.get()) + 4 * kMiB,
                             4 * kMiB)
                  .ok());
  const absl::Time start = clock_.Now();
  EXPECT_TRUE(up->Wait().ok());
  EXPECT_EQ(clock_.Now() - start, absl::Milliseconds(3 + 4));
  EXPECT_TRUE(down->Wait().ok());
}

TEST_F(VirtualDeviceTest, WhatNeverEndsHoldsUpItsStreamAlone) {
  const auto stream = MakeStream();
  const auto other = MakeStream();
  device_->script().Fail(DeviceCallKind::kToDevice, 0, {.never = true});
  ASSERT_TRUE(stream->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  ASSERT_TRUE(stream->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  ASSERT_TRUE(other->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  EXPECT_TRUE(other->Wait().ok());
  EXPECT_FALSE(clock_.Advance());  // nothing will ever happen
  std::vector<absl::Status> ended;
  stream->Poll(&ended);
  EXPECT_TRUE(ended.empty());
  device_->Release();
  EXPECT_TRUE(stream->Wait().ok());
}

TEST_F(VirtualDeviceTest, AFailedCopyLeavesItsTargetUndefined) {
  const auto stream = MakeStream();
  device_->script().Fail(DeviceCallKind::kToHost, 0,
                         {.at_end = absl::InternalError("broken")});
  ASSERT_TRUE(stream->CopyToHost(host_.data(), memory_.get(), kMiB).ok());
  EXPECT_EQ(stream->Wait(), absl::InternalError("broken"));
  EXPECT_EQ(host_[0], std::byte{0xFF});
}

TEST_F(VirtualDeviceTest, BrokenItEndsAllAndCallsNothing) {
  const auto stream = MakeStream();
  int calls = 0;
  ASSERT_TRUE(stream->CopyToDevice(memory_.get(), host_.data(), kMiB).ok());
  ASSERT_TRUE(stream->OnDone([&] { ++calls; }).ok());
  device_->Break("code 700");
  const absl::Status broken = absl::UnavailableError("fake:0: code 700");
  std::vector<absl::Status> ended;
  stream->Poll(&ended);
  EXPECT_EQ(ended, std::vector<absl::Status>(1, broken));
  EXPECT_EQ(device_->Health(), broken);
  EXPECT_EQ(stream->CopyToHost(host_.data(), memory_.get(), 1), broken);
  while (clock_.Advance()) {
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(VirtualDeviceTest, WhatCustomersDoWrongIsNoted) {
  const auto stream = MakeStream();
  auto* const end = static_cast<std::byte*>(memory_.get()) + 8 * kMiB;
  EXPECT_TRUE(
      absl::IsInvalidArgument(stream->CopyToHost(host_.data(), end - 5, 6)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      stream->CopyToHost(host_.data(), host_.data(), 1)));
  EXPECT_EQ(device_->bytes().violations().size(), 2u);
  device_->bytes().RequirePins();
  EXPECT_TRUE(stream->CopyToHost(host_.data(), end - 5, 5).ok());
  EXPECT_EQ(device_->bytes().violations().size(), 3u);
  EXPECT_TRUE(stream->Wait().ok());
}

using VirtualDeviceDeathTest = VirtualDeviceTest;

TEST_F(VirtualDeviceDeathTest, ItsAddressesAreNoMemoryOfTheCpu) {
  EXPECT_DEATH(*static_cast<volatile char*>(memory_.get()) = 1, "");
}

TEST(ThreadedDeviceTest, ACopyTakesWhatItsBytesTake) {
  ThreadedWorld world({.rate = static_cast<double>(kMiB) * 20});
  const auto memory = world.device()->Allocate(kMiB);
  const auto stream = world.device()->MakeStream();
  std::vector<std::byte> host(kMiB);
  const absl::Time start = SystemClock().Now();
  ASSERT_TRUE((*stream)->CopyToDevice(memory->get(), host.data(), kMiB).ok());
  EXPECT_TRUE((*stream)->Wait().ok());
  EXPECT_GE(SystemClock().Now() - start, absl::Milliseconds(50));
}

TEST(ThreadedDeviceTest, WhatNeverEndsIsReleased) {
  ThreadedWorld world;
  world.fake().script().Fail(DeviceCallKind::kToDevice, 0, {.never = true});
  const auto memory = world.device()->Allocate(kMiB);
  const auto stream = world.device()->MakeStream();
  std::vector<std::byte> host(kMiB);
  ASSERT_TRUE((*stream)->CopyToDevice(memory->get(), host.data(), kMiB).ok());
  std::vector<absl::Status> ended;
  (*stream)->Poll(&ended);
  EXPECT_TRUE(ended.empty());
  world.fake().Release();
  EXPECT_TRUE((*stream)->Wait().ok());
}

TEST(ThreadedDeviceTest, BrokenItEndsAllAndCallsNothing) {
  ThreadedWorld world;
  world.fake().script().Fail(DeviceCallKind::kToDevice, 0, {.never = true});
  const auto memory = world.device()->Allocate(kMiB);
  const auto stream = world.device()->MakeStream();
  std::vector<std::byte> host(kMiB);
  int calls = 0;
  ASSERT_TRUE((*stream)->CopyToDevice(memory->get(), host.data(), kMiB).ok());
  ASSERT_TRUE((*stream)->OnDone([&] { ++calls; }).ok());
  world.fake().Break("code 700");
  EXPECT_EQ((*stream)->Wait(), absl::UnavailableError("fake:0: code 700"));
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace terrace
