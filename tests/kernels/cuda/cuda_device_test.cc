// The device over CUDA's calls, each of which fails in turn.
#include "kernels/cuda/cuda_device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/scripted_cuda.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;

class CudaDeviceTest : public testing::Test {
 protected:
  ~CudaDeviceTest() override { EXPECT_EQ(cuda_.Outstanding(), ""); }

  std::shared_ptr<Device> Open() {
    auto device = CudaDevice::Open(ScriptedCuda::calls(), 0);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }

  ScriptedCuda cuda_;
  std::vector<std::byte> host_ = std::vector<std::byte>(kBytes);
};

// Polls until there are that many ends, or nothing more comes.
std::vector<absl::Status> Ends(Device::Stream& stream, size_t count) {
  std::vector<absl::Status> ended;
  for (int i = 0; i < 100 && ended.size() < count; ++i) stream.Poll(&ended);
  return ended;
}

TEST_F(CudaDeviceTest, WithoutADriverItNamesCudasCode) {
  cuda_.Fail(0, 35);
  const auto device = CudaDevice::Open(ScriptedCuda::calls(), 0);
  EXPECT_TRUE(absl::IsUnavailable(device.status()));
  EXPECT_EQ(device.status().message(),
            "cuda:0: no device can be used: cudaGetDeviceCount: "
            "cudaErrorScripted (35): as the script says");
}

TEST_F(CudaDeviceTest, ADeviceThatIsNotThereIsRefused) {
  cuda_.set_devices(2);
  const auto device = CudaDevice::Open(ScriptedCuda::calls(), 2);
  EXPECT_TRUE(absl::IsUnavailable(device.status()));
  EXPECT_EQ(device.status().message(),
            "cuda:2: there is no such device, there are 2 that CUDA shows");
}

TEST_F(CudaDeviceTest, WithoutRoomItSaysWhatIsFree) {
  const auto device = Open();
  const auto memory = device->Allocate(int64_t{1} << 40);
  EXPECT_TRUE(absl::IsResourceExhausted(memory.status()));
  EXPECT_THAT(std::string(memory.status().message()),
              HasSubstr("cudaErrorMemoryAllocation (2): as the script says: "
                        "1099511627776 bytes asked for, 67108864 of 67108864 "
                        "are free"));
  EXPECT_TRUE(device->Health().ok());
}

TEST_F(CudaDeviceTest, ACopyEndsWhenItsEventHasCome) {
  const auto device = Open();
  const auto memory = device->Allocate(kBytes);
  const auto stream = device->MakeStream();
  cuda_.Hold();
  ASSERT_TRUE(
      (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes).ok());
  EXPECT_TRUE(Ends(**stream, 1).empty());
  cuda_.LetGo();
  EXPECT_EQ(Ends(**stream, 1), std::vector<absl::Status>(1));
}

TEST_F(CudaDeviceTest, EventsAreUsedAgain) {
  const auto device = Open();
  const auto memory = device->Allocate(kBytes);
  const auto stream = device->MakeStream();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes).ok());
    ASSERT_EQ(Ends(**stream, 1).size(), 1u);
  }
  EXPECT_THAT(cuda_.Outstanding(), HasSubstr("1 events"));
}

TEST_F(CudaDeviceTest, ACopyIsCutWherePiecesOfPinnedMemoryMeet) {
  const auto device = Open();
  const auto memory = device->Allocate(kBytes);
  const std::shared_ptr<const void> mapping(host_.data(), [](const void*) {});
  const auto pinned =
      device->Pin(mapping, absl::MakeSpan(host_), kBytes / 4 + 1);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const auto stream = device->MakeStream();
  ASSERT_TRUE(
      (*stream)->CopyToHost(host_.data() + 5, memory->get(), kBytes - 5).ok());
  EXPECT_EQ(cuda_.copies(), 4);
  EXPECT_EQ(Ends(**stream, 1).size(), 1u);  // one copy to its customer
  ASSERT_TRUE((*stream)->CopyToDevice(memory->get(), host_.data(), 100).ok());
  EXPECT_EQ(cuda_.copies(), 5);
  EXPECT_TRUE((*stream)->Wait().ok());
}

TEST_F(CudaDeviceTest, AnErrorThatPassesLeavesTheDeviceWell) {
  const auto device = Open();
  const auto memory = device->Allocate(kBytes);
  const auto stream = device->MakeStream();
  cuda_.Fail(1, ScriptedCuda::kInvalid);  // after the event
  const absl::Status status =
      (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes);
  EXPECT_EQ(status, absl::UnavailableError(
                        "cuda:0: cudaMemcpyAsync: cudaErrorInvalidValue (1): "
                        "as the script says"));
  EXPECT_TRUE(device->Health().ok());
  EXPECT_TRUE(Ends(**stream, 1).empty());
  ASSERT_TRUE(
      (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes).ok());
  EXPECT_EQ(Ends(**stream, 1), std::vector<absl::Status>(1));
}

TEST_F(CudaDeviceTest, AStickyErrorEndsAllAndIsToldForEver) {
  const auto device = Open();
  auto memory = device->Allocate(kBytes);
  auto stream = device->MakeStream();
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes).ok());
  }
  ASSERT_TRUE((*stream)->OnDone([&calls] { ++calls; }).ok());
  cuda_.Break(ScriptedCuda::kIllegalAddress);
  const absl::Status broken = absl::UnavailableError(
      "cuda:0: a copy: cudaErrorIllegalAddress (700): as the script says; it "
      "fails for good, until the process ends");
  EXPECT_EQ(Ends(**stream, 3), std::vector<absl::Status>(3, broken));
  EXPECT_EQ(device->Health(), broken);
  EXPECT_EQ((*stream)->CopyToHost(host_.data(), memory->get(), 1), broken);
  EXPECT_EQ((*stream)->OnDone([] {}), broken);
  EXPECT_EQ(device->Allocate(1).status(), broken);
  EXPECT_EQ(device->AllocatePinned(64).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(device->MakeStream().status(), broken);
  EXPECT_EQ(device->Synchronize(), broken);
  stream->reset();
  *memory = nullptr;
  EXPECT_EQ(calls, 0);
}

// One that shows in a call is found by the probe after it.
TEST_F(CudaDeviceTest, AStickyErrorOfACallEndsTheDevice) {
  const auto device = Open();
  cuda_.Break(ScriptedCuda::kIllegalAddress);
  EXPECT_TRUE(absl::IsUnavailable(device->Synchronize()));
  EXPECT_THAT(
      std::string(device->Health().message()),
      HasSubstr("cudaDeviceSynchronize: cudaErrorIllegalAddress (700)"));
}

TEST_F(CudaDeviceTest, WaitTellsOfWhatFailedUnderWay) {
  const auto device = Open();
  const auto memory = device->Allocate(kBytes);
  const auto stream = device->MakeStream();
  ASSERT_TRUE(
      (*stream)->CopyToDevice(memory->get(), host_.data(), kBytes).ok());
  cuda_.Break(ScriptedCuda::kIllegalAddress);
  const absl::Status status = (*stream)->Wait();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(device->Health(), status);
}

// Everything a tier asks of a device, once.
absl::Status UseADevice(std::vector<std::byte>& host, int* calls) {
  auto device = CudaDevice::Open(ScriptedCuda::calls(), 0);
  if (!device.ok()) return device.status();
  auto memory = (*device)->Allocate(kBytes);
  if (!memory.ok()) return memory.status();
  auto pinned_memory = (*device)->AllocatePinned(kBytes);
  if (!pinned_memory.ok()) return pinned_memory.status();
  const std::shared_ptr<const void> mapping(host.data(), [](const void*) {});
  auto pinned = (*device)->Pin(mapping, absl::MakeSpan(host), kBytes / 2);
  if (!pinned.ok()) return pinned.status();
  auto stream = (*device)->MakeStream();
  if (!stream.ok()) return stream.status();
  absl::Status first = (*device)->Synchronize();
  for (int i = 0; i < 2; ++i) {
    first.Update((*stream)->CopyToDevice(memory->get(), host.data(), kBytes));
    first.Update((*stream)->OnDone([calls] { ++*calls; }));
  }
  for (const absl::Status& status : Ends(**stream, 2)) first.Update(status);
  first.Update((*stream)->Wait());
  return first;
}

TEST_F(CudaDeviceTest, EachCallFailsInTurnAndNothingIsLeft) {
  int calls = 0;
  ASSERT_TRUE(UseADevice(host_, &calls).ok());
  EXPECT_EQ(calls, 2);
  const int64_t all = cuda_.made();
  ASSERT_EQ(cuda_.Outstanding(), "");
  int told = 0;
  for (int64_t call = 0; call < all; ++call) {
    cuda_.Fail(call, ScriptedCuda::kInvalid);
    const absl::Status status = UseADevice(host_, &calls);
    EXPECT_EQ(cuda_.Outstanding(), "") << call;
    if (status.ok()) continue;  // a call that gives something back
    ++told;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("cudaErrorInvalidValue (1)"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:0: "));
  }
  EXPECT_GT(told, 15);
}

TEST_F(CudaDeviceTest, EachCallBreaksTheDeviceInTurn) {
  int calls = 0;
  ASSERT_TRUE(UseADevice(host_, &calls).ok());
  const int64_t all = cuda_.made();
  for (int64_t call = 0; call < all; ++call) {
    cuda_.Fail(call, ScriptedCuda::kIllegalAddress);
    cuda_.Fail(call + 1, ScriptedCuda::kIllegalAddress);  // the probe
    const absl::Status status = UseADevice(host_, &calls);
    EXPECT_EQ(cuda_.Outstanding(), "") << call;
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("(700)"));
    }
  }
}

}  // namespace
}  // namespace terrace
