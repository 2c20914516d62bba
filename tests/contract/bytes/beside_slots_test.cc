// Queues with slots where queues of bytes work as well.
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/contract/bytes/byte_contract_fixture.h"

namespace terrace {
namespace {

class BesideSlotsContract : public ByteQueueContract {
 protected:
  void Begin(int places, int slots) {
    Make(places);
    queue_ = OpenMore(1);
    slots_ = world().OpenQueue(kPage, slots);
    ASSERT_NE(slots_, nullptr);
  }
  absl::Status PushSlot(TensorId tensor, Access access) {
    return slots_->Push({{tensor, access}}, 0, Soon());
  }
  absl::StatusOr<Pin> Next() {
    absl::StatusOr<Ready> ready = slots_->Next(Soon());
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    return std::move(ready->pins->front());
  }

  std::unique_ptr<RequestQueue> slots_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, BesideSlotsContract,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

// Else their pins, which nobody can ask for back, would take the room that
// tensors of other sizes count on.
TEST_P(BesideSlotsContract, WhatTheyAskForComesIntoTheirWindows) {
  Begin(/*places=*/6, /*slots=*/2);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  const Pin first = Have(tensors[0], Access::kOverwrite);
  std::vector<Pin> pins;
  for (const size_t i : {1, 2}) {
    auto pin = world().Take(*slots_, tensors[i], Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    pins.push_back(*std::move(pin));
  }
  EXPECT_EQ(stats().host.used_bytes, 3 * kPlace);
  for (const size_t i : {3, 4, 5}) {
    pins.push_back(Have(tensors[i], Access::kOverwrite));
  }
  EXPECT_EQ(stats().host.used_bytes, 6 * kPlace);
  EXPECT_EQ(stats().bytes_written(), 0);
  EXPECT_EQ(stats().bytes.groups_beyond, 0);
}

TEST_P(BesideSlotsContract, WhatCameAheadIsPinnedNoMoreThanThereAreSlots) {
  constexpr int kTensors = 8;
  Begin(/*places=*/10, /*slots=*/2);
  const std::vector<TensorId> tensors = world().RegisterMany(kTensors, kPage);
  ASSERT_TRUE(slots_->BeginStep(1).ok());
  for (int i = 0; i < kTensors; ++i) {
    ASSERT_TRUE(
        PushSlot(tensors[static_cast<size_t>(i)], Access::kOverwrite).ok());
    auto pin = Next();
    ASSERT_TRUE(pin.ok()) << pin.status();
    WritePattern(pin->data(), static_cast<uint8_t>(i));
    pin->Release();
  }
  ASSERT_TRUE(slots_->CommitStep({1}).ok());
  ASSERT_TRUE(slots_->BeginStep(2).ok());
  // More than two have room there.
  EXPECT_TRUE(world().WaitUntil([&] { return stats().prefetch_reads >= 4; }));
  for (const TensorId each : tensors) {
    ASSERT_TRUE(PushSlot(each, Access::kUpdate).ok());
  }
  std::vector<Pin> pins;
  for (int i = 0; i < kTensors; ++i) {
    if (pins.size() == 2) {
      EXPECT_TRUE(absl::IsFailedPrecondition(Next().status()));
      pins.erase(pins.begin());
    }
    auto pin = Next();
    ASSERT_TRUE(pin.ok()) << pin.status();
    // What is read comes after what is there.
    const auto which = absl::c_find(tensors, pin->tensor()) - tensors.begin();
    EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(which)));
    pins.push_back(*std::move(pin));
  }
  pins.clear();
  EXPECT_TRUE(slots_->CommitStep({2}).ok());
  EXPECT_EQ(stats().bytes.groups_beyond, 0);
}

TEST_P(BesideSlotsContract, FetchesThatFailLeaveAllSlots) {
  Begin(/*places=*/4, /*slots=*/2);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  for (const TensorId each : tensors) world().Fill(*slots_, each, 7);
  {
    // Whichever slots were written back first: the other tensors are below.
    std::vector<Pin> last;
    for (const size_t i : {4, 5}) {
      ASSERT_TRUE(PushSlot(tensors[i], Access::kRead).ok());
      auto pin = Next();
      ASSERT_TRUE(pin.ok()) << pin.status();
      last.push_back(*std::move(pin));
    }
  }
  world().faults().FailAll({.kind = FaultKind::kError, .error = EIO},
                           CallFilter::kReads);
  for (const size_t i : {0, 1}) {
    ASSERT_TRUE(PushSlot(tensors[i], Access::kRead).ok());
    EXPECT_FALSE(Next().ok());
  }
  world().faults().Clear();
  std::vector<Pin> pins;
  for (const size_t i : {2, 3}) {
    ASSERT_TRUE(PushSlot(tensors[i], Access::kRead).ok());
    auto pin = Next();
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), 7));
    pins.push_back(*std::move(pin));
  }
}

// Pins of two slots and the window could leave no part for another one of its
// size.
TEST_P(BesideSlotsContract, NothingComesAheadBesideALargeTensor) {
  constexpr int kTensors = 8;
  Begin(/*places=*/10, /*slots=*/2);
  const Pin large = Have(world().Register("large", 7 * kPage),
                         Access::kOverwrite);  // four places
  const std::vector<TensorId> tensors = world().RegisterMany(kTensors, kPage);
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(slots_->BeginStep(step).ok());
    for (const TensorId each : tensors) {
      ASSERT_TRUE(PushSlot(each, Access::kOverwrite).ok());
      auto pin = Next();
      ASSERT_TRUE(pin.ok()) << pin.status();
      WritePattern(pin->data(), 1);
      pin->Release();
    }
    ASSERT_TRUE(slots_->CommitStep({step}).ok());
    EXPECT_EQ(stats().host.used_bytes, 6 * kPlace);
  }
}

}  // namespace
}  // namespace terrace
