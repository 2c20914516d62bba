// A paced engine is a server of a known rate per file and direction.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "aio/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kBlock = 4096;
constexpr int64_t kReadRate = 4096 * 1000;  // a block per millisecond
constexpr int64_t kWriteRate = 4096 * 500;  // a block per two

class PacedEngineTest : public testing::Test {
 protected:
  PacedEngineTest() : buffer_(64 * kBlock) { Make({kReadRate, kWriteRate}); }

  void Make(const PaceOptions& pace) {
    engine_ =
        MakePacedEngine(MakeMemoryEngine(2, 1 << 20, clock_), pace, clock_);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine_->AddFile(i).ok());
  }

  void Submit(IoDirection direction, int64_t blocks, uint64_t tag,
              int file = 0) {
    const IoRequest request{file, direction,       buffer_.data(),
                            0,    blocks * kBlock, tag};
    ASSERT_EQ(engine_->Submit(absl::MakeConstSpan(&request, 1)), 1);
  }

  std::vector<uint64_t> Poll() {
    IoResult results[16];
    const int n = engine_->Poll(absl::MakeSpan(results));
    std::vector<uint64_t> tags;
    for (int i = 0; i < n; ++i) {
      EXPECT_GT(results[i].result, 0);
      tags.push_back(results[i].tag);
    }
    return tags;
  }

  void Pass(int ms) { clock_.JumpTo(clock_.Now() + absl::Milliseconds(ms)); }

  VirtualClock clock_;
  AlignedBuffer buffer_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_F(PacedEngineTest, DeliversAtBytesOverRateOneAfterTheOther) {
  const absl::Time start = clock_.Now();
  Submit(IoDirection::kRead, 1, 1);
  Submit(IoDirection::kRead, 2, 2);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(engine_->NextEvent(), start + absl::Milliseconds(1));
  clock_.JumpTo(engine_->NextEvent());
  EXPECT_THAT(Poll(), ElementsAre(1));
  EXPECT_EQ(engine_->NextEvent(), start + absl::Milliseconds(3));
  clock_.JumpTo(engine_->NextEvent());
  EXPECT_THAT(Poll(), ElementsAre(2));
  EXPECT_EQ(engine_->NextEvent(), absl::InfiniteFuture());
}

TEST_F(PacedEngineTest, AnIdleServerSavesUpNothing) {
  Pass(100);
  const absl::Time start = clock_.Now();
  Submit(IoDirection::kRead, 1, 1);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(engine_->NextEvent(), start + absl::Milliseconds(1));
}

TEST_F(PacedEngineTest, DirectionsAndFilesAreServersOfTheirOwn) {
  Submit(IoDirection::kRead, 4, 1);
  Submit(IoDirection::kWrite, 1, 2);
  Submit(IoDirection::kRead, 1, 3, /*file=*/1);
  Pass(1);
  EXPECT_THAT(Poll(), ElementsAre(3));
  Pass(1);
  EXPECT_THAT(Poll(), ElementsAre(2));
  Pass(2);
  EXPECT_THAT(Poll(), ElementsAre(1));
}

// One of a file each; of the first one's device two have files.
TEST_F(PacedEngineTest, EnginesOfOneDeviceAreServedOneAfterTheOther) {
  const auto device =
      std::make_shared<PacedDevice>(PaceOptions{kReadRate, kWriteRate});
  const auto other =
      std::make_shared<PacedDevice>(PaceOptions{kReadRate, kWriteRate});
  const auto make = [&] {
    engine_ = MakePacedEngine(MakeMemoryEngine(2, 1 << 20, clock_),
                              {device, other}, clock_);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine_->AddFile(i).ok());
  };
  make();
  Submit(IoDirection::kRead, 2, 1);
  const std::unique_ptr<IoEngine> first = std::move(engine_);
  make();
  Submit(IoDirection::kRead, 1, 2);
  Submit(IoDirection::kWrite, 1, 3);
  Submit(IoDirection::kRead, 1, 4, /*file=*/1);
  Pass(1);
  EXPECT_THAT(Poll(), ElementsAre(4));
  Pass(1);
  EXPECT_THAT(Poll(), ElementsAre(3));
  Pass(1);
  EXPECT_THAT(Poll(), ElementsAre(2));
  IoResult result;
  EXPECT_EQ(first->Poll(absl::MakeSpan(&result, 1)), 1);
}

TEST_F(PacedEngineTest, ARateOfZeroIsNotPaced) {
  Make({0, kWriteRate});
  Submit(IoDirection::kWrite, 1, 1);
  Submit(IoDirection::kRead, 60, 2);
  EXPECT_THAT(Poll(), ElementsAre(2));
  EXPECT_EQ(engine_->info().paced_completions, 0);
  Pass(2);
  EXPECT_THAT(Poll(), ElementsAre(1));
  EXPECT_EQ(engine_->info().paced_completions, 1);
}

TEST_F(PacedEngineTest, CountsWhatIsDeliveredMoreThanAMillisecondLate) {
  Submit(IoDirection::kRead, 1, 1);
  Submit(IoDirection::kRead, 1, 2);
  Pass(2);  // the first is exactly 1 ms late, which is not more
  EXPECT_THAT(Poll(), ElementsAre(1, 2));
  EXPECT_EQ(engine_->info().late_completions, 0);
  Submit(IoDirection::kRead, 1, 3);
  Pass(3);
  EXPECT_THAT(Poll(), ElementsAre(3));
  EXPECT_EQ(engine_->info().late_completions, 1);
  EXPECT_EQ(engine_->info().paced_completions, 3);
}

TEST_F(PacedEngineTest, TheBytesAreThereBeforeTheirCompletionIsSeen) {
  buffer_.Fill(1);
  Submit(IoDirection::kWrite, 1, 1);
  EXPECT_THAT(Poll(), IsEmpty());
  buffer_.Fill(0);
  Submit(IoDirection::kRead, 1, 2);
  Pass(10);
  EXPECT_THAT(Poll(), ElementsAre(2, 1));
  EXPECT_EQ(buffer_.data()[0], std::byte{1});
}

// In real time: never early, and at best within the spun last part of a
// wait. The best of many, because a loaded machine only delays: of as many as
// it takes there.
TEST(PacedEngineRealTime, WaitNeitherReturnsEarlyNorOversleeps) {
  Clock& clock = SystemClock();
  auto engine = MakePacedEngine(MakeMemoryEngine(1, 1 << 20, clock),
                                {kReadRate, kWriteRate}, clock);
  const int file = *engine->AddFile(0);
  AlignedBuffer buffer(kBlock);
  constexpr absl::Duration kSpun = absl::Microseconds(60);
  absl::Duration best = absl::InfiniteDuration();
  const absl::Time limit = clock.Now() + absl::Seconds(30);
  for (uint64_t i = 0; i < 50 || (best >= kSpun && clock.Now() < limit); ++i) {
    const absl::Time start = clock.Now();
    const IoRequest request{file, IoDirection::kRead, buffer.data(), 0, kBlock,
                            i};
    ASSERT_EQ(engine->Submit(absl::MakeConstSpan(&request, 1)), 1);
    IoResult result;
    while (engine->Poll(absl::MakeSpan(&result, 1)) == 0) {
      engine->Wait(absl::InfiniteFuture());
    }
    const absl::Duration took = clock.Now() - start;
    ASSERT_GE(took, absl::Milliseconds(1));
    best = std::min(best, took - absl::Milliseconds(1));
  }
  EXPECT_LT(best, kSpun);
}

}  // namespace
}  // namespace terrace
