// Queues of bytes at a device: what comes up to it, what leaves it, and who is
// asked for what.
#include "terrace/byte_queue.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/device/byte_device_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_P(DeviceByteQueues, APinHasAnAddressAndNoData) {
  Open(4, 16);
  const TensorId tensor = Written("a", 3);
  const Pin pin = Have(*queue_, tensor, Access::kRead);
  EXPECT_TRUE(pin.data().empty());
  EXPECT_NE(pin.address(), 0u);
  EXPECT_TRUE(world().Has(pin, 3));
  EXPECT_EQ(device_stats().pinned_bytes, kPlace);
}

TEST_P(DeviceByteQueues, WhatLeavesComesDownToMemoryAndComesBack) {
  Open(2, 16);
  const std::vector<TensorId> tensors = WrittenMany(6);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*queue_, tensors[i], static_cast<uint8_t>(i))) << i;
    }
  }
  EXPECT_GT(device_stats().evictions, 0);
  EXPECT_EQ(stats().bytes_read(), 0);
}

TEST_P(DeviceByteQueues, WhereMemoryIsFullResidentsLeaveThereToo) {
  Open(2, 4);
  const std::vector<TensorId> tensors = WrittenMany(12);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*queue_, tensors[i], static_cast<uint8_t>(i))) << i;
    }
  }
  EXPECT_GT(stats().bytes_read(), 0);
  EXPECT_GT(stats().bytes_written(), 0);
  EXPECT_EQ(stats().bytes.beyond_bytes, 0);
}

TEST_P(DeviceByteQueues, WhatRestsBelowComesThroughMemoryAndStaysThere) {
  Open(4, 8, {.prefetch = false});
  const std::vector<TensorId> tensors = WrittenMany(16);
  const int64_t read = stats().bytes_read();
  // It was written first and is below by now.
  ASSERT_TRUE(Holds(*queue_, tensors[0], 0));
  ASSERT_GT(stats().bytes_read(), read);
  const auto memory = OpenAt("", 1);
  const int64_t once = stats().bytes_read();
  EXPECT_TRUE(Holds(*memory, tensors[0], 0));
  EXPECT_EQ(stats().bytes_read(), once);
}

TEST_P(DeviceByteQueues, ATensorIsHadAtTwoTiersInTurn) {
  Open(2, 4);
  const auto memory = OpenAt("", 2);
  const TensorId tensor = Written("a", 1);
  const std::vector<TensorId> others = WrittenMany(5);
  for (uint8_t i = 2; i < 10; ++i) {
    ByteQueue& writer = i % 2 == 0 ? *memory : *queue_;
    ByteQueue& reader = i % 2 == 0 ? *queue_ : *memory;
    Pin pin =
        Have(writer, tensor, i % 3 == 0 ? Access::kUpdate : Access::kOverwrite);
    world().Write(pin, i);
    pin.Release();
    EXPECT_TRUE(Holds(reader, tensor, i)) << int{i};
    EXPECT_TRUE(Holds(*queue_, others[i % 5], i % 5));
  }
}

TEST_P(DeviceByteQueues, WhatIsNotWrittenIsNoMoreDirty) {
  Open(2, 8);
  const TensorId tensor = Written("a", 1);
  Pin discarded = Have(*queue_, tensor, Access::kUpdate);
  discarded.ReleaseUnchanged();
  EXPECT_TRUE(Holds(*queue_, tensor, 1));
  EXPECT_EQ(device_stats().dirty_bytes, kPlace);
  const auto others = WrittenMany(4);
  EXPECT_TRUE(Holds(*queue_, tensor, 1));
  EXPECT_EQ(device_stats().dirty_bytes + device_stats().clean_bytes,
            device_stats().used_bytes);
}

TEST_P(DeviceByteQueues, IdlePinsAreAskedBackForRoom) {
  Open(2, 8);
  const std::vector<TensorId> tensors = WrittenMany(3);
  std::map<uint64_t, Pin> held;
  for (size_t i = 0; i < 2; ++i) {
    Pin pin = Have(*queue_, tensors[i], Access::kRead);
    held[pin.token()] = std::move(pin);
  }
  const Want want{tensors[2], Access::kRead};
  const auto request = queue_->Push({&want, 1}, {}, Soon());
  ASSERT_TRUE(request.ok());
  auto news = queue_->Await(*request, Soon());
  ASSERT_TRUE(news.ok()) << news.status();
  ASSERT_EQ(news->recalls.size(), 1u);
  ASSERT_EQ(held.erase(news->recalls.front()), 1u);
  auto pins = Answer(*queue_, *request, Soon());
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_TRUE(world().Has(pins->front(), 2));
}

TEST_P(DeviceByteQueues, AKeptPinEndsAfterItsUse) {
  Open(1, 8);
  const std::vector<TensorId> tensors = WrittenMany(2);
  Pin used = Have(*queue_, tensors[0], Access::kRead);
  const Want want{tensors[1], Access::kRead};
  const auto request = queue_->Push({&want, 1}, {}, Soon());
  ASSERT_TRUE(request.ok());
  auto news = queue_->Await(*request, Soon());
  ASSERT_TRUE(news.ok()) << news.status();
  ASSERT_EQ(news->recalls, std::vector<uint64_t>{used.token()});
  queue_->Keep(used.token());
  EXPECT_TRUE(Waits(*queue_, *request));
  used.Release();
  auto pins = Answer(*queue_, *request, Soon());
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_TRUE(world().Has(pins->front(), 1));
}

TEST_P(DeviceByteQueues, NoMoreIsHeldThanIsToBe) {
  Open(4, 8);
  const std::vector<TensorId> tensors = WrittenMany(3);
  ASSERT_TRUE(queue_->HoldAtMost(kPlace).ok());
  const Pin first = Have(*queue_, tensors[0], Access::kRead);
  const Want want{tensors[1], Access::kRead};
  const auto request = queue_->Push({&want, 1}, {}, Soon());
  auto news = queue_->Await(*request, Soon());
  ASSERT_TRUE(news.ok() && news->pins.has_value() && news->pins->ok());
  EXPECT_EQ(news->recalls, std::vector<uint64_t>{first.token()});
}

TEST_P(DeviceByteQueues, WindowsArePromisedOfTheDevicesBudget) {
  Make(4, 8);
  const auto three = OpenAt(kHbm, 3);
  const auto refused = runtime().OpenBytes(2 * kPlace, kHbm);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(Message(refused.status()),
              HasSubstr(absl::StrCat("the budget is ", 4 * kPlace)));
  EXPECT_TRUE(runtime().OpenBytes(kPlace, kHbm).ok());
  EXPECT_TRUE(runtime().OpenBytes(8 * kPlace, "").ok());
}

TEST_P(DeviceByteQueues, WhatIsLargerThanTheDeviceIsRefusedAtOnce) {
  Open(2, 16);
  const TensorId large = world().Register("large", 5 * kPage);
  const auto pin = Try(*queue_, large, Access::kOverwrite);
  EXPECT_TRUE(absl::IsResourceExhausted(pin.status()));
  EXPECT_THAT(Message(pin.status()), HasSubstr(absl::StrCat(2 * kPlace)));
}

TEST_P(DeviceByteQueues, WhatCannotPassThroughMemoryForWindowsIsRefusedAtOnce) {
  Open(8, 4, {.prefetch = false});
  const TensorId large = world().Register("large", 5 * kPage);
  Have(*queue_, large, Access::kOverwrite).Release();
  const std::vector<TensorId> others = WrittenMany(20);  // it is below by now
  const auto slots = InMemory(2);
  const auto pin = Try(*queue_, large, Access::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(pin.status())) << pin.status();
  EXPECT_THAT(Message(pin.status()), HasSubstr("pass through memory"));
}

TEST_P(DeviceByteQueues,
       WhereTheDeviceIsFullAndNothingMayLeaveTheHoldersAreNamed) {
  Open(2, 16);
  const std::vector<TensorId> tensors = WrittenMany(3);
  std::vector<Pin> held;
  std::vector<uint64_t> tokens;
  for (size_t i = 0; i < 2; ++i) {
    held.push_back(Have(*queue_, tensors[i], Access::kRead));
    tokens.push_back(held.back().token());
  }
  const auto pin = Try(*queue_, tensors[2], Access::kRead, tokens);
  EXPECT_TRUE(absl::IsResourceExhausted(pin.status())) << pin.status();
  EXPECT_THAT(Message(pin.status()), HasSubstr(absl::StrCat(2 * kPlace)));
  EXPECT_THAT(Message(pin.status()), HasSubstr("'t0'"));
}

// All of memory is pinned by one who waits: nothing leaves the device through
// it, nor comes up.
TEST_P(DeviceByteQueues, WhereNoRoomOfMemoryComesTheHoldersAreNamed) {
  Open(2, 2, {.prefetch = false});
  const std::vector<TensorId> tensors = WrittenMany(8);
  const auto memory = OpenAt("", 2);
  std::vector<Pin> held;
  std::vector<uint64_t> tokens;
  for (size_t i = 0; i < 2; ++i) {
    held.push_back(Have(*memory, tensors[i], Access::kRead));
    tokens.push_back(held.back().token());
  }
  ASSERT_TRUE(memory->BeginWaiting(tokens).ok());
  const auto pin = Try(*queue_, tensors[3], Access::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(pin.status())) << pin.status();
  EXPECT_THAT(Message(pin.status()), HasSubstr("'t0'"));
  // What the device has is had all the same.
  EXPECT_TRUE(Holds(*queue_, tensors[6], 6));
  EXPECT_TRUE(Holds(*queue_, tensors[7], 7));
  memory->EndWaiting(tokens);
  EXPECT_TRUE(world().Has(held[0], 0));
  held.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(Holds(*queue_, tensors[i], static_cast<uint8_t>(i))) << i;
  }
  EXPECT_EQ(stats().bytes.groups_beyond, 0);
}

TEST_P(DeviceByteQueues, BesideAQueueWithSlotsOnTheDevice) {
  Make(6, 16);
  const auto slots = OnDevice(2);
  queue_ = OpenAt(kHbm, 4);
  const std::vector<TensorId> tensors = WrittenMany(10);
  for (uint8_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(world().Holds(*slots, tensors[i], i)) << int{i};
    EXPECT_TRUE(Holds(*queue_, tensors[9 - i], 9 - i)) << int{i};
  }
}

TEST_P(DeviceByteQueues, ManyThreadsAtOneQueue) {
  if (world_is_virtual()) GTEST_SKIP() << "virtual time has one thread";
  Open(6, 8);
  const std::vector<TensorId> tensors = WrittenMany(16);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 60; ++i) {
        const size_t which = (i * (t + 1) * 7 + t) % tensors.size();
        const Want want{tensors[which], Access::kRead};
        const auto request = queue_->Push({&want, 1}, {}, Soon());
        ASSERT_TRUE(request.ok());
        auto pins = Answer(*queue_, *request, Soon());
        ASSERT_TRUE(pins.ok()) << pins.status();
        pins->front().ReleaseUnchanged();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(Holds(*queue_, tensors[i], static_cast<uint8_t>(i)));
  }
}

TEST_P(DeviceByteQueues, CloseNamesPinsThatAreHeld) {
  Open(2, 8);
  const TensorId tensor = Written("a", 1);
  Pin pin = Have(*queue_, tensor, Access::kRead);
  queue_.reset();
  const absl::Status held = runtime().Close(Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(held)) << held;
  EXPECT_THAT(Message(held), HasSubstr("'a'"));
  EXPECT_TRUE(world().Has(pin, 1));
  pin.Release();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

TEST_P(DeviceByteQueues, APinnedTensorIsNotUnregistered) {
  Open(2, 8);
  const TensorId tensor = Written("a", 1);
  {
    const Pin pin = Have(*queue_, tensor, Access::kRead);
    EXPECT_TRUE(absl::IsFailedPrecondition(runtime().Unregister(tensor)));
  }
  EXPECT_TRUE(runtime().Unregister(tensor).ok());
  stats();
  EXPECT_EQ(device_stats().used_bytes, 0);
}

// What a step uses comes up ahead in the next: from disk to memory, and from
// there to the device.
TEST_P(DeviceByteQueues, AStepIsReadAheadOverBothLevels) {
  Open(16, 32);
  const std::vector<TensorId> tensors = WrittenMany(64);
  int64_t on_device = 0;
  int64_t ahead = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    const int64_t reads = stats().prefetch_reads;
    on_device = device_stats().hits;
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(Holds(*queue_, tensors[i], static_cast<uint8_t>(i)));
      // What computes gives it time.
      const Time then = world().Now() + OnThisMachine(absl::Milliseconds(2));
      queue_->AwaitRecalls(then).IgnoreError();
    }
    ASSERT_TRUE(queue_->CommitStep({step}).ok());
    ahead = stats().prefetch_reads - reads;
    on_device = device_stats().hits - on_device;
  }
  // Each of those that were not there came ahead in two legs.
  EXPECT_GT(ahead, 48);
  EXPECT_GT(on_device, 32);
}

TERRACE_DEVICE_WORLDS(DeviceByteQueues);

}  // namespace
}  // namespace terrace
