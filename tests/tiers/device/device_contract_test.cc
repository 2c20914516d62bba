// What every device promises, on each that there is.
#include "tests/tiers/device/device_contract.h"

#include <sys/mman.h>

#include <atomic>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST_P(DeviceContractTest, BytesOfAnySizeComeBackAndNoOthersChange) {
  constexpr int64_t kOffset = 4096 + 7;
  const DeviceMemory memory = Allocate(8 * kMiB);
  const auto stream = MakeStream();
  std::vector<std::byte> before(8 * kMiB);
  std::vector<std::byte> sent(8 * kMiB);
  uint64_t seed = 0;
  for (const int64_t size :
       {int64_t{1}, int64_t{17}, int64_t{4096}, kMiB - 1, 5 * kMiB + 12345}) {
    FillRandom(absl::MakeSpan(before), ++seed);
    FillRandom(absl::MakeSpan(sent), ++seed);
    auto* const place = static_cast<std::byte*>(memory.get()) + kOffset;
    ASSERT_TRUE(
        stream->CopyToDevice(memory.get(), before.data(), 8 * kMiB).ok());
    ASSERT_TRUE(stream->CopyToDevice(place, sent.data(), size).ok());
    ASSERT_TRUE(stream->Wait().ok());
    std::vector<std::byte> expected = before;
    std::copy_n(sent.begin(), size, expected.begin() + kOffset);
    EXPECT_TRUE(SameBytes(BytesOf(*device_, memory.get(), 8 * kMiB), expected))
        << size;
    std::vector<std::byte> back(sent.size(), std::byte{1});
    ASSERT_TRUE(stream->CopyToHost(back.data(), place, size).ok());
    ASSERT_TRUE(stream->Wait().ok());
    EXPECT_TRUE(SameBytes(absl::MakeSpan(back).first(size),
                          absl::MakeSpan(sent).first(size)));
    EXPECT_EQ(back[static_cast<size_t>(size)], std::byte{1});
  }
}

TEST_P(DeviceContractTest, EachEndIsToldOnceInTheOrderBegun) {
  constexpr int kCopies = 20;
  const DeviceMemory memory = Allocate(kMiB);
  const auto stream = MakeStream();
  std::vector<std::byte> host(kMiB);
  std::vector<absl::Status> ended;
  stream->Poll(&ended);
  EXPECT_TRUE(ended.empty());
  for (int i = 0; i < kCopies; ++i) {
    ASSERT_TRUE(stream->CopyToDevice(memory.get(), host.data(), kMiB - i).ok());
  }
  EXPECT_TRUE(world_->Await([&] {
    stream->Poll(&ended);
    return ended.size() >= kCopies;
  }));
  EXPECT_EQ(ended.size(), static_cast<size_t>(kCopies));
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  ended.clear();
  stream->Poll(&ended);
  EXPECT_TRUE(ended.empty());
}

// So what comes after a copy's end sees its bytes.
TEST_P(DeviceContractTest, ACopyThatEndedHasMovedItsBytes) {
  constexpr int kCopies = 8;
  const DeviceMemory memory = Allocate(kCopies * kMiB);
  const auto stream = MakeStream();
  std::vector<std::byte> sent(kCopies * kMiB);
  FillRandom(absl::MakeSpan(sent), 5);
  ASSERT_TRUE(
      stream->CopyToDevice(memory.get(), sent.data(), kCopies * kMiB).ok());
  ASSERT_TRUE(stream->Wait().ok());
  std::vector<std::byte> back(sent.size());
  for (int i = 0; i < kCopies; ++i) {
    ASSERT_TRUE(
        stream
            ->CopyToHost(back.data() + i * kMiB,
                         static_cast<std::byte*>(memory.get()) + i * kMiB, kMiB)
            .ok());
  }
  std::vector<absl::Status> ended;
  size_t looked = 0;
  EXPECT_TRUE(world_->Await([&] {
    stream->Poll(&ended);
    for (; looked < ended.size(); ++looked) {
      EXPECT_TRUE(SameBytes(absl::MakeSpan(back).subspan(looked * kMiB, kMiB),
                            absl::MakeSpan(sent).subspan(looked * kMiB, kMiB)));
    }
    return looked == kCopies;
  }));
}

TEST_P(DeviceContractTest, WhatWaitToldPollDoesNot) {
  const DeviceMemory memory = Allocate(kMiB);
  const auto stream = MakeStream();
  std::vector<std::byte> host(kMiB);
  ASSERT_TRUE(stream->CopyToHost(host.data(), memory.get(), kMiB).ok());
  EXPECT_TRUE(stream->Wait().ok());
  std::vector<absl::Status> ended;
  stream->Poll(&ended);
  EXPECT_TRUE(ended.empty());
  EXPECT_TRUE(stream->Wait().ok());  // nothing is under way
}

TEST_P(DeviceContractTest, ItCallsOnceWhenAllBeforeHaveEnded) {
  constexpr int kCopies = 5;
  const DeviceMemory memory = Allocate(4 * kMiB);
  const auto stream = MakeStream();
  std::vector<std::byte> host(4 * kMiB);
  std::atomic<int> calls = 0;
  for (int i = 0; i < kCopies; ++i) {
    ASSERT_TRUE(stream->CopyToDevice(memory.get(), host.data(), 4 * kMiB).ok());
    ASSERT_TRUE(stream->OnDone([&calls] { ++calls; }).ok());
  }
  EXPECT_TRUE(world_->Await([&] { return calls == kCopies; }));
  std::vector<absl::Status> ended;
  stream->Poll(&ended);  // all of them are told without another wait
  EXPECT_EQ(ended.size(), static_cast<size_t>(kCopies));
  ASSERT_TRUE(stream->OnDone([&calls] { ++calls; }).ok());  // nothing before
  EXPECT_TRUE(world_->Await([&] { return calls == kCopies + 1; }));
  EXPECT_TRUE(stream->Wait().ok());
  EXPECT_EQ(calls, kCopies + 1);
}

TEST_P(DeviceContractTest, StreamsDoNotWaitForEachOther) {
  const DeviceMemory memory = Allocate(16 * kMiB);
  const auto up = MakeStream();
  const auto down = MakeStream();
  std::vector<std::byte> first(8 * kMiB);
  std::vector<std::byte> second(8 * kMiB);
  auto* const half = static_cast<std::byte*>(memory.get()) + 8 * kMiB;
  ASSERT_TRUE(down->CopyToDevice(memory.get(), first.data(), 8 * kMiB).ok());
  ASSERT_TRUE(up->CopyToHost(second.data(), half, 8 * kMiB).ok());
  EXPECT_TRUE(up->Wait().ok());
  EXPECT_TRUE(down->Wait().ok());
}

TEST_P(DeviceContractTest, WithoutRoomItSaysSoAndGoesOn) {
  const auto refused = device_->Allocate(int64_t{1} << 50);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("1125899906842624"),
            std::string::npos)
      << refused.status();
  EXPECT_TRUE(device_->Health().ok());
  const DeviceMemory memory = Allocate(kMiB);
  EXPECT_EQ(BytesOf(*device_, memory.get(), kMiB).size(), size_t{kMiB});
}

TEST_P(DeviceContractTest, AMappingPinnedInPiecesIsCopiedAcrossThem) {
  constexpr int64_t kBytes = 4 * kMiB;
  constexpr int64_t kPiece = kMiB + 4096;
  void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::shared_ptr<const void> mapping(
      mapped, [](void* address) { munmap(address, kBytes); });
  const absl::Span<std::byte> host(static_cast<std::byte*>(mapped), kBytes);
  auto pinned = device_->Pin(mapping, host, kPiece);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->pieces(), 4);
  FillRandom(host, 3);
  const DeviceMemory memory = Allocate(kBytes);
  const auto stream = MakeStream();
  ASSERT_TRUE(stream->CopyToDevice(memory.get(), host.data(), kBytes).ok());
  ASSERT_TRUE(stream->Wait().ok());
  EXPECT_TRUE(SameBytes(BytesOf(*device_, memory.get(), kBytes), host));
  *pinned = PinnedMapping();
  EXPECT_TRUE(device_->Pin(mapping, host, kPiece).ok());  // it is free again
}

TEST_P(DeviceContractTest, PinnedMemoryIsAligned) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4097}, 3 * kMiB}) {
    const auto memory = device_->AllocatePinned(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % 64, 0u);
    (*memory)[0] = (*memory)[static_cast<size_t>(bytes) - 1] = std::byte{1};
  }
}

TEST_P(DeviceContractTest, ItIsWellAndDoneWithWhatWasQueued) {
  EXPECT_TRUE(device_->Health().ok());
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_FALSE(device_->name().empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContractTest, AllDeviceWorlds(),
                         DeviceWorldName);

}  // namespace
}  // namespace terrace
