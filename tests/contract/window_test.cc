// Windows, residents and what counts against the budget: runtime.h, stats.h.
#include <random>

#include "tests/contract/contract_fixture.h"
#include "tests/runtime/other_client.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class WindowContract : public ContractTest {
 protected:
  // Each of `tensors` read once, in that order, as one step.
  void Walk(RequestQueue& queue, int64_t step,
            const std::vector<TensorId>& tensors) {
    ASSERT_TRUE(queue.BeginStep(step).ok());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(world().Holds(queue, tensors[i], static_cast<uint8_t>(i)));
    }
    ASSERT_TRUE(queue.CommitStep({.step = step}).ok());
  }
  // Demand reads of one step in a repeated order that the budget cannot hold.
  int64_t ReadsOfACyclicStep(EvictionKind eviction) {
    TestRuntimeOptions options;
    options.eviction = eviction;
    options.prefetch = false;
    Make(8, options);
    const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
    auto queue = world().OpenQueue(kPage, 2);
    for (int i = 0; i < 12; ++i) world().Fill(*queue, tensors[i], i);
    // Everything is written, so that from here on no group waits for a victim.
    world().OpenQueue(kPage, 6).reset();
    EXPECT_TRUE(world().WaitUntil([&] {
      return stats().window_bytes == 2 * kPlace &&
             stats().bytes_written() == 12 * kPlace;
    }));
    for (int64_t step = 1; step <= 4; ++step) Walk(*queue, step, tensors);
    const int64_t before = stats().demand_reads;
    Walk(*queue, 5, tensors);
    return stats().demand_reads - before;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, WindowContract, testing::ValuesIn(kAllWorlds),
                         WorldParamName);

// Their faults and what they count are of disks.
class WindowOverDisks : public WindowContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, WindowOverDisks,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(WindowOverDisks, AFailedWriteInAClosedWindowIsNotWaitedFor) {
  Make(2);
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                           CallFilter::kWrites);
  const TensorId a = world().Register("a", kPage);
  world().Fill(*world().OpenQueue(kPage, 1), a, 1);
  const Time begun = world().Now();
  const absl::Duration patience = Soon() - begun;
  const absl::Status refused =
      runtime().OpenQueue(kPage, 2, begun + patience).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("ENOSPC"));
  EXPECT_LT(world().Now(), begun + patience / 2);
  world().faults().Clear();
  EXPECT_TRUE(world().Holds(*world().OpenQueue(kPage, 2), a, 1));
}

TEST_P(WindowContract, AWindowNeedsSlotsAndBytes) {
  Make(4);
  for (const auto& [bytes, slots] :
       {std::pair<int64_t, int>{0, 1}, {-1, 1}, {kPage, 0}, {kPage, -1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        runtime().OpenQueue(bytes, slots, Soon()).status()));
  }
}

TEST_P(WindowContract, WindowsBeyondTheBudgetAreRefusedAtOnce) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 2);
  const absl::Status refused =
      runtime().OpenQueue(kPage, 3, absl::InfiniteFuture()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  // The least budget that would do, and the one there is.
  EXPECT_THAT(Message(refused), HasSubstr(std::to_string(5 * kPlace)));
  EXPECT_THAT(Message(refused), HasSubstr(std::to_string(4 * kPlace)));
  EXPECT_NE(world().OpenQueue(kPage, 2), nullptr);
}

TEST_P(WindowContract, AWindowBeyondCountingIsRefused) {
  EXPECT_EQ(ResidentBytes(INT64_MAX), INT64_MAX);
  EXPECT_EQ(WindowBytes(int64_t{1} << 62, 4), INT64_MAX);
  Make(4);
  auto queue = world().OpenQueue(kPage, 1);
  for (const int64_t bytes : {int64_t{1} << 62, INT64_MAX}) {
    const absl::Status refused =
        runtime().OpenQueue(bytes, 4, absl::InfiniteFuture()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    const absl::Status homeless =
        runtime().Register({.name = "large", .size_bytes = bytes}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(homeless)) << homeless;
  }
}

TEST_P(WindowContract, HeadersAndWholePagesCount) {
  EXPECT_EQ(ResidentBytes(1), 2 * 4096);
  EXPECT_EQ(ResidentBytes(4096), 2 * 4096);
  EXPECT_EQ(ResidentBytes(4097), 3 * 4096);
  EXPECT_EQ(WindowBytes(4097, 5), 5 * 3 * 4096);
  Make(8);
  auto queue = world().OpenQueue(1, 2);
  const TensorId a = world().Register("a", 1);
  world().Fill(*queue, a, 1);
  const Stats now = stats();
  EXPECT_EQ(now.window_bytes, 2 * kPlace);
  EXPECT_EQ(now.resident_bytes, kPlace);
  EXPECT_EQ(now.host.used_bytes, 3 * kPlace);
  EXPECT_EQ(now.host.peak_bytes, 3 * kPlace);
  EXPECT_EQ(now.host.budget_bytes, 8 * kPlace);
}

TEST_P(WindowContract, ResidentsLeaveForAWindow) {
  Make(6);
  const std::vector<TensorId> tensors = world().RegisterMany(5, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  for (int i = 0; i < 5; ++i) world().Fill(*queue, tensors[i], i);
  EXPECT_EQ(stats().resident_bytes, 5 * kPlace);
  auto other = world().OpenQueue(kPage, 3);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(stats().window_bytes, 4 * kPlace);
  EXPECT_LE(stats().resident_bytes, 2 * kPlace);
  EXPECT_GE(stats().evictions, 3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(world().Holds(*other, tensors[i], i));
}

TEST_P(WindowContract, NoMoreResidentsLeaveThanAreInTheWay) {
  TestRuntimeOptions options;
  options.eviction = EvictionKind::kLru;
  Make(6, options);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  for (int i = 0; i < 3; ++i) world().Fill(*queue, tensors[i], i);
  // The last one, beside what is free, is the first to go.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
  ASSERT_EQ(stats().resident_bytes, 3 * kPlace);
  auto other = world().OpenQueue(kPage, 3);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(stats().resident_bytes, 2 * kPlace);
  EXPECT_EQ(stats().evictions, 1);
  EXPECT_EQ(stats().tiers[0].evictions, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
}

TEST_P(WindowContract, APinnedResidentIsWaitedForUntilTheDeadline) {
  Make(4);
  const TensorId a = world().Register("the pinned one", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().Fill(*queue, a, 1);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kRead);
  ASSERT_TRUE(pin.ok());
  const absl::Status late = runtime().OpenQueue(kPage, 3, Shortly()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;
  EXPECT_THAT(Message(late), HasSubstr("'the pinned one'"));
  EXPECT_TRUE(HasPattern(pin->data(), 1));
  pin->Release();
  EXPECT_NE(world().OpenQueue(kPage, 3), nullptr);
}

TEST_P(WindowContract, AWindowBehindOneThatWaitsEndsAtItsOwnDeadline) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().Fill(*queue, a, 1);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kRead);
  ASSERT_TRUE(pin.ok());
  // As another thread's OpenQueue, which comes first and waits for the pin.
  OtherClient other(runtime());
  ASSERT_TRUE(other.Open(kPage, 3, absl::InfiniteFuture()));
  const absl::Status late = runtime().OpenQueue(kPage, 3, Shortly()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;
  pin->Release();
  const absl::Status opened = other.CloseOnceOpen(ClockOf(runtime()));
  EXPECT_TRUE(opened.ok()) << opened;
}

// Windows lie where they were opened: what is free is two parts.
TEST_P(WindowContract, RoomInPartsIsWaitedForUntilTheDeadline) {
  Make(6);
  auto first = world().OpenQueue(kPage, 2);
  auto between = world().OpenQueue(kPage, 2);
  auto last = world().OpenQueue(kPage, 2);
  first.reset();
  last.reset();
  const Time deadline = Shortly();
  const absl::Status late = runtime().OpenQueue(kPage, 3, deadline).status();
  EXPECT_TRUE(absl::IsResourceExhausted(late)) << late;
  EXPECT_GE(world().Now(), deadline);
  // What was asked for, what is free, and the most of it in one piece.
  for (const int64_t bytes : {3 * kPlace, 4 * kPlace, 2 * kPlace}) {
    EXPECT_THAT(Message(late), HasSubstr(std::to_string(bytes)));
  }
  EXPECT_NE(world().OpenQueue(kPage, 2), nullptr);
}

TEST_P(WindowContract, RoomInPartsIsHadWhenTheWindowBetweenGoes) {
  Make(6);
  auto first = world().OpenQueue(kPage, 2);
  auto between = world().OpenQueue(kPage, 2);
  auto last = world().OpenQueue(kPage, 2);
  first.reset();
  last.reset();
  // As another thread's OpenQueue.
  OtherClient other(runtime());
  ASSERT_TRUE(other.Open(kPage, 3, Soon()));
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().window_bytes == 2 * kPlace; }));
  stats();  // and the mover has looked for room since
  between.reset();
  const absl::Status opened = other.CloseOnceOpen(ClockOf(runtime()));
  EXPECT_TRUE(opened.ok()) << opened;
}

TEST_P(WindowContract, ResidentsArePinnedInPlaceAndNotChargedToTheWindow) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  std::vector<Pin> pins;  // four at once, by a window of one slot
  for (int i = 0; i < 4; ++i) {
    absl::StatusOr<Pin> pin = world().Take(*queue, tensors[i], Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    pins.push_back(*std::move(pin));
  }
  EXPECT_EQ(stats().bytes_read(), 0);
}

TEST_P(WindowOverDisks, ResidentsAreWrittenOnlyUnderPressure) {
  Make(8);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(queue->BeginStep(round).ok());
    for (int i = 0; i < 6; ++i) world().Fill(*queue, tensors[i], round + i);
    ASSERT_TRUE(queue->CommitStep({.step = round}).ok());
  }
  Stats now = stats();
  EXPECT_EQ(now.bytes_written(), 0);
  EXPECT_EQ(now.paths()[0].traffic.requests_written, 0);
  EXPECT_EQ(now.hits, 24);
  EXPECT_EQ(now.evictions, 0);
  // Pressure: two have to go, and each is written once.
  auto other = world().OpenQueue(kPage, 2);
  ASSERT_NE(other, nullptr);
  now = stats();
  EXPECT_EQ(now.bytes_written(), now.evictions * kPlace);
  EXPECT_GE(now.evictions, 2);
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], 4 + i));
  }
}

TEST_P(WindowContract, NextUseKeepsWhatACyclicOrderNeeds) {
  // Six stay, two more are in the window at the end of a step.
  const int64_t reads = ReadsOfACyclicStep(EvictionKind::kNextUse);
  EXPECT_LE(reads, 6);
  EXPECT_GE(reads, 12 - 6 - 2);
}

TEST_P(WindowContract, LruEvictsExactlyWhatACyclicOrderNeeds) {
  // No resident is hit; the window's two slots keep what they have.
  EXPECT_EQ(ReadsOfACyclicStep(EvictionKind::kLru), 12 - 2);
}

TEST_P(WindowContract, ReplacedWindowsLeaveNothingBehind) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  for (int round = 0; round < 50; ++round) {
    auto queue = world().OpenQueue(kPage, 1 + round % 4);
    ASSERT_NE(queue, nullptr);
    world().Fill(*queue, tensors[round % 4], round);
    if (round > 0) {
      EXPECT_TRUE(world().Holds(*queue, tensors[(round - 1) % 4], round - 1));
    }
  }
  ASSERT_TRUE(world().WaitUntil([&] { return stats().window_bytes == 0; }));
  EXPECT_LE(stats().host.peak_bytes, 4 * kPlace);
}

// Everything counts, under any load: a plain map of what must be there.
TEST_P(WindowContract, TheBudgetHoldsUnderRandomLoad) {
  constexpr int kTensors = 20;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    TestRuntimeOptions options;
    options.eviction =
        seed % 2 == 0 ? EvictionKind::kLru : EvictionKind::kNextUse;
    Make(16, options);
    std::vector<TensorId> tensors;
    std::vector<int> expected(kTensors, -1);
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(
          world().Register("tensor " + std::to_string(i),
                           static_cast<int64_t>(1 + random() % (3 * kPage))));
    }
    std::unique_ptr<RequestQueue> queues[2];
    for (int i = 0; i < 400; ++i) {
      auto& queue = queues[random() % 2];
      if (queue == nullptr || random() % 40 == 0) {
        queue.reset();
        queue = world().OpenQueue(3 * kPage, 1 + random() % 2);
        ASSERT_NE(queue, nullptr);
      }
      const size_t t = random() % kTensors;
      if (expected[t] >= 0 && random() % 2 == 0) {
        EXPECT_TRUE(world().Holds(*queue, tensors[t], expected[t])) << i;
      } else {
        expected[t] = static_cast<int>(random() % 256);
        world().Fill(*queue, tensors[t], static_cast<uint8_t>(expected[t]));
      }
      const Stats now = stats();
      ASSERT_LE(now.host.peak_bytes, now.host.budget_bytes);
      ASSERT_EQ(now.host.used_bytes, now.window_bytes + now.resident_bytes);
      ASSERT_LE(now.host.used_bytes, now.host.peak_bytes);
    }
    EXPECT_GT(stats().bytes_read(), 0);
  }
}

TEST_P(WindowContract, APrefetchHintFetchesAheadWhereThereIsRoom) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  world().OpenQueue(kPage, 3).reset();  // sees all residents off
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().window_bytes == kPlace; }));
  runtime().Prefetch({tensors[0]});
  ASSERT_TRUE(world().WaitUntil([&] { return stats().prefetch_reads == 1; }));
  const int64_t demanded = stats().demand_reads;
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_EQ(stats().prefetch_hits, 1);
  EXPECT_EQ(stats().demand_reads, demanded);
}

TEST_P(WindowOverDisks, APrefetchHintNeverFailsAndNeverBlocks) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  runtime().Prefetch({});
  runtime().Prefetch({TensorId{-1}, TensorId{99}, tensors[0]});  // no contents
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  // No room outside the window: dropped. Nor does it wait for reads that are
  // held back.
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  for (int i = 0; i < 100; ++i) runtime().Prefetch(tensors);
  EXPECT_EQ(stats().prefetch_reads, 0);
  world().faults().Clear();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
}

TEST_P(WindowContract, RegisterRefusesWhatIsNoTensor) {
  Make(4);
  world().Register("a", kPage);
  TensorSpec spec;
  spec.name = "a";
  spec.size_bytes = kPage;
  EXPECT_TRUE(absl::IsAlreadyExists(runtime().Register(spec).status()));
  spec.name = "";
  EXPECT_TRUE(absl::IsInvalidArgument(runtime().Register(spec).status()));
  spec.name = "b";
  spec.size_bytes = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(runtime().Register(spec).status()));
}

}  // namespace
}  // namespace terrace
