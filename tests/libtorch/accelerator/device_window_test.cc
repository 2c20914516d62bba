#include "libtorch/accelerator/device_window.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/libtorch/accelerator/device_world.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

std::vector<WorldTensor> AddSeveral(DeviceWorld& world, int count) {
  std::vector<WorldTensor> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(
        world.Add(absl::StrCat("tensor ", i), static_cast<std::byte>(i + 1)));
  }
  return tensors;
}

std::vector<bool> Here(const std::vector<WorldTensor>& tensors) {
  std::vector<bool> here;
  for (const WorldTensor& each : tensors) here.push_back(each.is_here());
  return here;
}

TEST(DeviceWindow, KeepsToItsBudgetAndEvictsWhatWasUsedLongestAgo) {
  DeviceWorld world(INT64_MAX, /*budget_bytes=*/2 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 3);
  EXPECT_EQ(world.window().EvictAll(), 3);
  EXPECT_EQ(world.window().stats().held_bytes, 0);
  for (const int i : {0, 1, 0, 2}) {
    EXPECT_EQ(world.Read(tensors[i]), static_cast<std::byte>(i + 1));
  }
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(world.window().stats().held_bytes, 2 * kTensorBytes);
}

TEST(DeviceWindow, WhatWasOnlyReadLeavesWithoutACopy) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{1});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.window().stats().clean_drops, 0);  // nothing was below
  EXPECT_EQ(world.Read(tensor), std::byte{1});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.window().stats().clean_drops, 1);
  world.Fill(tensor, std::byte{2});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.window().stats().clean_drops, 1);
  EXPECT_EQ(world.Read(tensor), std::byte{2});
}

TEST(DeviceWindow, WhatIsPinnedStaysBeyondTheBudget) {
  DeviceWorld world(INT64_MAX, /*budget_bytes=*/kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  EXPECT_EQ(world.window().EvictAll(), 2);
  ASSERT_TRUE(world.Begin(tensors[0], kHome, false).ok());
  ASSERT_TRUE(world.Begin(tensors[1], kHome, false).ok());
  EXPECT_EQ(world.window().EvictAll(), 0);
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, true}));
  world.End(tensors[0]);
  world.End(tensors[1]);
  EXPECT_EQ(world.window().EvictAll(), 2);
}

// What others have had at most is left free for them in the next step.
TEST(DeviceWindow, LeavesTheRoomThatOthersHadInTheStepBefore) {
  DeviceWorld world(/*limit_bytes=*/4 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 3);
  EXPECT_EQ(world.window().EvictAll(), 3);
  {
    const auto one = world.AllocateAndFill();
    const auto two = world.AllocateAndFill();
    world.Read(tensors[0]);
  }
  world.window().BeginStep();
  for (const WorldTensor& each : tensors) world.Read(each);
  EXPECT_EQ(Here(tensors), (std::vector<bool>{false, true, true}));
  world.window().BeginStep();  // a step without them
  for (const WorldTensor& each : tensors) world.Read(each);
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, true, true}));
}

TEST(DeviceWindow, ReliefDropsWhatIsCleanTheOldestFirst) {
  DeviceWorld world(/*limit_bytes=*/3 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 3);
  world.MakeClean();
  for (const int i : {1, 0, 2}) world.Read(tensors[i]);
  EXPECT_NE(world.AllocateAndFill(), nullptr);
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(world.window().stats().relief_drops, 1);
  EXPECT_EQ(world.Read(tensors[1]), std::byte{2});
}

TEST(DeviceWindow, ReliefKeepsWhatIsWrittenOrPinned) {
  DeviceWorld world(/*limit_bytes=*/2 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  world.MakeClean();
  world.Fill(tensors[0], std::byte{9});
  ASSERT_TRUE(world.Begin(tensors[1], kHome, false).ok());
  EXPECT_FALSE(world.device().Allocate(kTensorBytes, kHome).ok());
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, true}));
  world.End(tensors[1]);
  EXPECT_TRUE(world.device().Allocate(kTensorBytes, kHome).ok());
  EXPECT_EQ(Here(tensors), (std::vector<bool>{true, false}));
}

TEST(DeviceWindow, ReliefWaitsForNoDevice) {
  DeviceWorld world(/*limit_bytes=*/kTensorBytes);
  const WorldTensor tensor = world.Add("a", std::byte{1});
  world.MakeClean();
  tensor.tensor->uses().NoteCollective();
  EXPECT_FALSE(world.device().Allocate(kTensorBytes, kHome).ok());
  world.window().BeginStep();
  // It could go, if somebody waited for the device.
  EXPECT_FALSE(world.device().Allocate(kTensorBytes, kHome).ok());
  EXPECT_EQ(world.device().waits_for_all(), 0);
  EXPECT_TRUE(tensor.is_here());
}

TEST(DeviceWindow, ReliefIsFalseDuringACapture) {
  DeviceWorld world(/*limit_bytes=*/kTensorBytes);
  const WorldTensor tensor = world.Add("a", std::byte{1});
  world.MakeClean();
  world.device().BeginCapture(kHome);
  EXPECT_FALSE(world.port().Relieve());
  world.device().EndCapture(kHome);
  EXPECT_TRUE(tensor.is_here());
  EXPECT_TRUE(world.port().Relieve());
  EXPECT_FALSE(tensor.is_here());
}

TEST(DeviceWindow, ReliefIsFalseWhileThereIsRoom) {
  DeviceWorld world(/*limit_bytes=*/3 * kTensorBytes);
  const WorldTensor tensor = world.Add("a", std::byte{1});
  world.MakeClean();
  EXPECT_FALSE(world.port().Relieve());
  EXPECT_TRUE(tensor.is_here());
}

// A miss larger than those before it is expected from then on.
TEST(DeviceWindow, ReliefLearnsHowMuchAMissWants) {
  DeviceWorld world(/*limit_bytes=*/8 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  world.MakeClean();
  EXPECT_FALSE(world.port().Relieve());
  const auto large = *world.device().Allocate(3 * kTensorBytes, kHome);
  EXPECT_FALSE(world.port().Relieve());  // 5 of 8, and 3 more fit
  const auto small = *world.device().Allocate(kTensorBytes, kHome);
  EXPECT_TRUE(world.port().Relieve());
  EXPECT_EQ(Here(tensors), (std::vector<bool>{false, false}));
}

// Else a thread with the lock that allocates and one that relieves would wait
// for each other.
TEST(DeviceWindow, NoLockIsHeldWhileABlockIsAllocatedOrEnds) {
  DeviceWorld world(/*limit_bytes=*/2 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  const WorldTensor other = tensors[0];
  std::atomic<int> calls = 0;
  world.device().SetOnBlock([&] {
    ++calls;
    std::future<void> done = std::async(std::launch::async, [&] {
      world.window().stats();
      tensors[0].tensor->uses().NoteStep();
      tensors[1].tensor->uses().NoteStep();
    });
    EXPECT_EQ(done.wait_for(std::chrono::seconds(20)),
              std::future_status::ready);
  });
  EXPECT_EQ(world.window().EvictAll(), 2);
  EXPECT_EQ(world.Read(tensors[0]), std::byte{1});
  EXPECT_EQ(world.Read(tensors[1]), std::byte{2});
  EXPECT_NE(world.AllocateAndFill(), nullptr);  // by relief
  EXPECT_EQ(world.window().stats().relief_drops, 1);
  EXPECT_GE(calls, 6);
  world.device().SetOnBlock(nullptr);
}

TEST(DeviceWindow, AFetchWithoutMemoryEvictsEverythingElse) {
  DeviceWorld world(/*limit_bytes=*/2 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  EXPECT_EQ(world.window().EvictAll(), 2);
  world.Fill(tensors[0], std::byte{7});
  const auto other = world.AllocateAndFill();
  EXPECT_EQ(world.Read(tensors[1]), std::byte{2});
  EXPECT_EQ(world.Read(tensors[0]), std::byte{7});
}

TEST(DeviceWindow, AFetchThatFindsNoMemoryIsTriedAgain) {
  DeviceWorld world(/*limit_bytes=*/kTensorBytes);
  const WorldTensor tensor = world.Add("a", std::byte{1});
  EXPECT_EQ(world.window().EvictAll(), 1);
  auto other = world.AllocateAndFill();
  const absl::Status status = world.Begin(tensor, kHome, false);
  world.End(tensor);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(tensor.place->refusal(),
              HasSubstr("terrace: 'a' 256 bytes: CUDA out of memory"));
  other.reset();
  EXPECT_EQ(world.Read(tensor), std::byte{1});
  EXPECT_EQ(tensor.place->refusal(), "");
}

// LibTorch before 2.12.
TEST(DeviceWindow, WhatCannotBeForgivenFailsForEver) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{1});
  EXPECT_EQ(world.window().EvictAll(), 1);
  tensor.place->SetCanForgive(false);
  tensor.below->Fail(absl::DataLossError("path 0: EIO"));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = world.Begin(tensor, kHome, false);
    world.End(tensor);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    tensor.below->Fail(absl::OkStatus());
  }
}

TEST(DeviceWindow, WhatCannotBeCopiedDownStaysAndIsTold) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{1});
  tensor.below->Fail(absl::ResourceExhaustedError("ENOSPC"));
  EXPECT_EQ(world.window().EvictAll(), 0);
  EXPECT_THAT(world.window().stats().first_error.ToString(),
              HasSubstr("ENOSPC"));
  EXPECT_THAT(world.window().WriteBack().ToString(), HasSubstr("ENOSPC"));
  EXPECT_EQ(world.Read(tensor), std::byte{1});
  tensor.below->Fail(absl::OkStatus());
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.Read(tensor), std::byte{1});
}

// Each call to the device once; the values and the order stay right.
TEST(DeviceWindow, EachCallOfTheDeviceMayFail) {
  bool has_failed = true;
  int64_t calls = 0;
  for (int64_t call = 1; has_failed; ++call) {
    calls = call;
    SCOPED_TRACE(call);
    DeviceWorld world;
    const WorldTensor tensor = world.Add("a", std::byte{1});
    const auto event = *world.device().Record(kHome);
    ASSERT_TRUE(world.device().Await(kSide, *event).ok());
    world.device().FailAfter(call);
    has_failed = false;
    for (int round = 0; round < 3; ++round) {
      has_failed |= world.window().EvictAll() == 0;
      const absl::Status status = world.Begin(tensor, kSide, true);
      has_failed |= !status.ok();
      if (status.ok()) {
        EXPECT_EQ(world.device().Read(tensor.place->address(), kSide),
                  static_cast<std::byte>(round == 0 ? 1 : 2));
        world.device().Fill(tensor.place->address(), kSide, std::byte{2});
      } else {
        EXPECT_THAT(tensor.place->refusal(), HasSubstr("CUDA error"));
      }
      world.End(tensor);
      if (!status.ok()) break;
    }
    ASSERT_LT(call, 1000);
  }
  EXPECT_GT(calls, 10);  // of three evictions and fetches
}

TEST(DeviceWindow, ATensorThatDiedHereIsNotHeldAnyMore) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{1});
  EXPECT_EQ(world.window().stats().held_bytes, kTensorBytes);
  tensor.place->Die();
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.window().stats().held_bytes, 0);
  EXPECT_FALSE(world.Begin(tensor, kHome, false).ok());
  world.End(tensor);
}

TEST(DeviceWindow, FewCopiesKeepMemoryAtATime) {
  DeviceWorld world(INT64_MAX, /*budget_bytes=*/kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 8);
  EXPECT_EQ(world.window().EvictAll(), 8);
  world.device().SetSlow(true);
  for (const WorldTensor& each : tensors) {
    world.Fill(each, std::byte{9});
    int64_t held = 0;
    for (const WorldTensor& one : tensors) held += one.below->held();
    EXPECT_LE(held, 4);
  }
}

TEST(DeviceWindow, WhatCopiesHoldBelowIsGivenBackWhereItLacks) {
  DeviceWorld world;
  const std::vector<WorldTensor> tensors = AddSeveral(world, 2);
  EXPECT_EQ(world.window().EvictAll(), 2);
  world.device().SetSlow(true);
  tensors[1].below->SetOnHold([&] {
    return tensors[0].below->held() == 0
               ? absl::OkStatus()
               : absl::ResourceExhaustedError("memory has room for one");
  });
  EXPECT_EQ(world.Read(tensors[0]), std::byte{1});
  EXPECT_EQ(tensors[0].below->held(), 1);
  EXPECT_EQ(world.Read(tensors[1]), std::byte{2});
  EXPECT_EQ(tensors[0].below->held(), 0);
}

// Operations, evictions and an allocator under pressure, each on threads of
// their own; a value is what was written to it last.
TEST(DeviceWindow, ManyThreadsFindTheirValues) {
  DeviceWorld world(/*limit_bytes=*/8 * kTensorBytes);
  const std::vector<WorldTensor> tensors = AddSeveral(world, 6);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int half = 0; half < 2; ++half) {
    threads.emplace_back([&, half] {
      std::mt19937 random(static_cast<uint32_t>(half));
      std::vector<int> values;
      for (int i = 0; i < 6; ++i) values.push_back(i + 1);
      for (int round = 0; round < 400; ++round) {
        const int i = half * 3 + static_cast<int>(random() % 3);
        EXPECT_EQ(world.Read(tensors[i]), static_cast<std::byte>(values[i]));
        values[i] = static_cast<int>(random() % 200);
        world.Fill(tensors[i], static_cast<std::byte>(values[i]));
      }
      is_over = true;
    });
  }
  threads.emplace_back([&] {
    while (!is_over) {
      world.window().WriteBack().IgnoreError();
      world.window().BeginStep();
      std::this_thread::yield();
    }
  });
  threads.emplace_back([&] {
    while (!is_over) {
      const auto block = world.device().Allocate(kTensorBytes, kHome);
      std::this_thread::yield();
    }
  });
  threads.emplace_back([&] {
    while (!is_over) {
      world.window().EvictAll();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(world.window().stats().first_error.ok())
      << world.window().stats().first_error;
}

TEST(DeviceWindow, ATensorLeavesBesideRelief) {
  DeviceWorld world(/*limit_bytes=*/2 * kTensorBytes);
  std::atomic<bool> is_over = false;
  std::thread relieving([&] {
    while (!is_over) world.port().Relieve();
  });
  DeviceWindow& window = world.window();
  for (int round = 0; round < 200; ++round) {
    auto block = world.device().Allocate(kTensorBytes, kHome);
    ASSERT_TRUE(block.ok()) << block.status();
    auto tensor = std::make_shared<DeviceTensor>(
        "passing", kTensorBytes, kHome,
        std::make_unique<RacingPlace>(world.device(), *std::move(block)),
        std::make_unique<RacingBelow>(world.device(), kTensorBytes));
    ASSERT_TRUE(window.Add(tensor).ok());
    ASSERT_TRUE(window.WriteBack().ok());
    while (!window.Remove(*tensor)) std::this_thread::yield();
  }
  is_over = true;
  relieving.join();
  EXPECT_EQ(window.stats().held_bytes, 0);
}

}  // namespace
}  // namespace terrace
