// What comes to a queue of bytes before it is asked for.
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/bytes/byte_contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class ReadAheadContract : public ByteQueueContract {
 protected:
  static constexpr int kPlaces = 4;
  static constexpr int kTensors = 8;

  // Twice as many tensors as there is room for, written and, in one step, read.
  void Begin(TestRuntimeOptions options = {}, int places = kPlaces) {
    Make(places, std::move(options));
    queue_ = OpenMore(places);
    for (int i = 0; i < 2 * places; ++i) {
      tensors_.push_back(
          Written(std::to_string(i), kPage, static_cast<uint8_t>(i)));
    }
    Step(1);
  }
  void Step(int64_t step) {
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_TRUE(HasPattern(Have(tensors_[i], Access::kRead).data(),
                             static_cast<uint8_t>(i)));
    }
    ASSERT_TRUE(queue_->CommitStep({step}).ok());
  }

  std::vector<TensorId> tensors_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, ReadAheadContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(ReadAheadContract, TheNextStepsRequestsFindTheirTensorsThere) {
  Begin();
  const Stats before = stats();
  Step(2);
  const Stats after = stats();
  EXPECT_EQ(after.demand_reads, before.demand_reads);
  EXPECT_GE(after.prefetch_hits - before.prefetch_hits, kTensors - kPlaces);
  EXPECT_EQ(after.bytes.recalls, 0);
}

TEST_P(ReadAheadContract, SwitchedOffEachRequestReads) {
  Begin({.prefetch = false});
  const Stats before = stats();
  Step(2);
  EXPECT_GE(stats().demand_reads - before.demand_reads, kTensors - kPlaces);
  EXPECT_EQ(stats().prefetch_reads, 0);
}

TEST_P(ReadAheadContract, HalfOfWhatIsThereIsUnusedAtMost) {
  Begin();
  const Stats before = stats();
  ASSERT_TRUE(queue_->BeginStep(2).ok());
  Stats now = stats();
  // What the end of the step has brought ahead counts too.
  EXPECT_LE(now.prefetch_reads - now.prefetch_hits, kPlaces / 2);
  EXPECT_LE(now.host.used_bytes, kPlaces * kPlace);
  EXPECT_GT(now.prefetch_reads, 0);
  EXPECT_GE(now.prefetch_reads, before.prefetch_reads);
}

// What is pinned leaves for it too where it is used later, and where one is
// kept another does.
TEST_P(ReadAheadContract, APinThatIsUsedLaterIsAskedForBack) {
  Begin();
  std::vector<Pin> pins;
  for (int i = 0; i < kPlaces; ++i) {
    pins.push_back(Have(tensors_[static_cast<size_t>(i)], Access::kRead));
  }
  ASSERT_TRUE(queue_->BeginStep(2).ok());
  const int64_t reads = stats().prefetch_reads;
  EXPECT_EQ(stats().bytes.recalls, 0);  // all are used before the others
  queue_->Touch({tensors_[0], tensors_[1], tensors_[2], tensors_[3]});
  EXPECT_THAT(AwaitRecalls(*queue_),
              ElementsAre(pins[3].token(), pins[2].token()));
  queue_->Keep(pins[3].token());
  EXPECT_THAT(AwaitRecalls(*queue_), ElementsAre(pins[1].token()));
  EXPECT_EQ(stats().prefetch_reads, reads);
  EXPECT_TRUE(HasPattern(pins[2].data(), 2));
  pins[2].ReleaseUnchanged();
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().prefetch_reads == reads + 1; }));
  EXPECT_TRUE(HasPattern(pins[3].data(), 3));
  EXPECT_EQ(stats().bytes.recalls, 3);
}

// A quarter of the memory is four tensors: so the fifth from now is the last.
TEST_P(ReadAheadContract, RoomIsMadeForAllThatAreUsedSoon) {
  constexpr int kMany = 16;
  Begin({}, kMany);
  std::vector<Pin> pins;
  std::vector<TensorId> used;
  for (int i = 0; i < kMany; ++i) {
    used.push_back(tensors_[static_cast<size_t>(i)]);
    pins.push_back(Have(used.back(), Access::kRead));
  }
  ASSERT_TRUE(queue_->BeginStep(2).ok());
  const Stats before = stats();
  EXPECT_EQ(before.bytes.recalls, 0);
  queue_->Touch(used);
  ASSERT_TRUE(world().WaitUntil([&] { return stats().bytes.recalls >= 5; }));
  EXPECT_EQ(stats().bytes.recalls, 5);
  EXPECT_EQ(stats().prefetch_reads, before.prefetch_reads);
  EXPECT_THAT(
      AwaitRecalls(*queue_),
      UnorderedElementsAre(pins[15].token(), pins[14].token(), pins[13].token(),
                           pins[12].token(), pins[11].token()));
  pins.resize(kMany - 5);
  ASSERT_TRUE(world().WaitUntil(
      [&] { return stats().prefetch_reads == before.prefetch_reads + 5; }));
  pins.clear();
  for (int i = kMany; i < kMany + 5; ++i) {
    EXPECT_TRUE(
        HasPattern(Have(tensors_[static_cast<size_t>(i)], Access::kRead).data(),
                   static_cast<uint8_t>(i)));
  }
  EXPECT_EQ(stats().demand_reads, before.demand_reads);
}

// Two rooms that do not touch are free; what comes takes more than one of them.
TEST_P(ReadAheadContract, RoomIsMadeWhereFreeMemoryIsInParts) {
  constexpr int kMany = 8;
  Make(kMany);
  queue_ = OpenMore(kMany);
  const TensorId large = Written("large", 2 * kPage, 100);
  for (int i = 0; i < kMany; ++i) {
    tensors_.push_back(
        Written(std::to_string(i), kPage, static_cast<uint8_t>(i)));
  }
  int64_t evictions = 0;
  for (int64_t step = 1; step <= 2; ++step) {
    if (step == 2) {
      for (const size_t gone : {5, 2}) {
        ASSERT_TRUE(runtime().Unregister(tensors_[gone]).ok());
        tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(gone));
      }
      evictions = stats().evictions;
      EXPECT_GE(kMany * kPlace - stats().host.used_bytes,
                ResidentBytes(2 * kPage));
    }
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    const int64_t reads = stats().demand_reads;
    EXPECT_TRUE(HasPattern(Have(large, Access::kRead).data(), 100));
    EXPECT_EQ(stats().demand_reads - reads, step == 1 ? 1 : 0);
    // Beside a free room one has left for it, though as much was free, and
    // none that is used later but lies elsewhere.
    if (step == 2) {
      EXPECT_EQ(stats().evictions, evictions + 1);
    }
    for (const TensorId each : tensors_) Have(each, Access::kRead);
    ASSERT_TRUE(queue_->CommitStep({step}).ok());
  }
}

}  // namespace
}  // namespace terrace
