// When a process looks at the page of its loops, and what it makes of it, by a
// clock that the test turns; the page is a file of the test's own.
#include "daemon/client/stopped_loops.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

#include "daemon/client/under_way.h"
#include "gmock/gmock.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kIoTimeout = absl::Seconds(40);  // and a quarter: 10
constexpr absl::Time kNever = absl::InfiniteFuture();

class StoppedLoopsTest : public testing::Test {
 protected:
  StoppedLoopsTest()
      : file_(OwnDescriptor::Of(
            memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING))) {
    EXPECT_EQ(ftruncate(file_.get(), LoopPage::kBytes), 0);
    void* const mapped = mmap(nullptr, LoopPage::kBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED, file_.get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    page_ = new (mapped) LoopPage;
    page_->turns = 1;
  }
  ~StoppedLoopsTest() override { munmap(page_, LoopPage::kBytes); }

  void Seal() {
    EXPECT_EQ(fcntl(file_.get(), F_ADD_SEALS, LoopPage::kSeals), 0);
  }
  StoppedLoops Made() {
    Seal();
    auto view = LoopView::Map(file_);
    EXPECT_TRUE(view.ok()) << view.status();
    return {*std::move(view), "night", kIoTimeout};
  }
  static absl::Time At(double seconds) {
    return absl::UnixEpoch() + absl::Hours(1) + absl::Seconds(seconds);
  }
  // As the daemon's watch writes it, in a turn.
  void Tell(size_t loop, double seconds) {
    page_->silences[loop] = static_cast<int64_t>(seconds * 1e9);
    ++page_->turns;
  }

  const OwnDescriptor file_;
  LoopPage* page_;
};

TEST_F(StoppedLoopsTest, WhereNothingIsUnderWayNobodyLooks) {
  StoppedLoops loops = Made();
  EXPECT_EQ(loops.NextLook(), kNever);
  loops.OnUnderWay(At(0));
  loops.OnUnderWay(At(1));
  EXPECT_EQ(loops.NextLook(), At(10));
  Tell(LoopPage::kMover, 100);
  EXPECT_TRUE(loops.Look(At(10), kNever).ok());
  EXPECT_EQ(loops.NextLook(), kNever);
}

TEST_F(StoppedLoopsTest, OneThatHasStoppedForAQuarterIsNamed) {
  StoppedLoops loops = Made();
  loops.OnUnderWay(At(0));
  Tell(LoopPage::kMover, 7);
  EXPECT_TRUE(loops.Look(At(10), At(0)).ok());
  EXPECT_EQ(loops.NextLook(), At(13));  // it would have stopped for 10 s
  Tell(LoopPage::kMover, 10);
  const absl::Status told = loops.Look(At(13), At(0));
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()),
              HasSubstr("the loop 'mover' for this process, of the job "
                        "'night', has not turned for 10s"));
}

TEST_F(StoppedLoopsTest, AllThatHaveStoppedAreNamed) {
  StoppedLoops loops = Made();
  Tell(LoopPage::kSession, 10);
  Tell(LoopPage::kMover, 9);
  const absl::Status told = loops.Look(At(10), At(0));
  EXPECT_THAT(std::string(told.message()),
              HasSubstr("the loops 'session' and 'mover' for this process, of "
                        "the job 'night', have not turned for 10s"));
}

TEST_F(StoppedLoopsTest, OneThatGoesOnBeforeIsForgotten) {
  StoppedLoops loops = Made();
  Tell(LoopPage::kMover, 9);
  EXPECT_TRUE(loops.Look(At(10), At(0)).ok());
  Tell(LoopPage::kMover, 0);
  EXPECT_TRUE(loops.Look(At(11), At(0)).ok());
  EXPECT_EQ(loops.NextLook(), At(21));
}

// What has begun since then may not wait for it at all.
TEST_F(StoppedLoopsTest, WhatHasJustBegunIsGivenTheSame) {
  StoppedLoops loops = Made();
  Tell(LoopPage::kChecksums, 1000);
  EXPECT_TRUE(loops.Look(At(1000), At(996)).ok());
  EXPECT_EQ(loops.NextLook(), At(1006));
  Tell(LoopPage::kChecksums, 1006);
  EXPECT_TRUE(absl::IsUnavailable(loops.Look(At(1006), At(996))));
}

TEST_F(StoppedLoopsTest, ADisksThreadMayTakeWhatATransferMay) {
  StoppedLoops loops = Made();
  Tell(LoopPage::kFiles + 2, 39);
  EXPECT_TRUE(loops.Look(At(39), At(0)).ok());
  EXPECT_EQ(loops.NextLook(), At(40));
  Tell(LoopPage::kFiles + 2, 40);
  const absl::Status told = loops.Look(At(40), At(0));
  EXPECT_THAT(std::string(told.message()), HasSubstr("the loop 'files 2'"));
}

// It is as it was, also where what it says was true once.
TEST_F(StoppedLoopsTest, APageThatNobodyWritesSaysNothing) {
  StoppedLoops loops = Made();
  Tell(LoopPage::kMover, 9);
  EXPECT_TRUE(loops.Look(At(10), At(0)).ok());
  page_->silences[LoopPage::kMover] = 1'000'000'000'000;
  EXPECT_TRUE(loops.Look(At(11), At(0)).ok());
  EXPECT_EQ(loops.NextLook(), At(21));
}

// A customer's tags are its own: several groups may have one.
TEST(UnderWayTest, TheOldestOfAllIsKnown) {
  const auto at = [](int seconds) {
    return absl::UnixEpoch() + absl::Seconds(seconds);
  };
  UnderWay under_way;
  EXPECT_EQ(under_way.oldest(), kNever);
  under_way.BeginGroup(1, 0, at(3));
  under_way.BeginGroup(1, 0, at(5));
  under_way.BeginGroup(2, 0, at(4));
  under_way.BeginRequest(7, at(6));
  EXPECT_EQ(under_way.oldest(), at(3));
  under_way.EndGroup(1, 0);
  EXPECT_EQ(under_way.oldest(), at(4));
  under_way.EndQueue(2);
  EXPECT_EQ(under_way.oldest(), at(5));
  under_way.EndGroup(1, 0);
  under_way.EndGroup(1, 0);  // as nothing is left of it
  EXPECT_EQ(under_way.oldest(), at(6));
  under_way.EndRequest(7);
  EXPECT_EQ(under_way.oldest(), kNever);
}

TEST_F(StoppedLoopsTest, AnotherPageIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(LoopView::Map(file_).status()));
  Seal();
  EXPECT_TRUE(LoopView::Map(file_).ok());
  page_->version = LoopPage::kVersion + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(LoopView::Map(file_).status()));
  page_->version = LoopPage::kVersion;
  page_->magic = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(LoopView::Map(file_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LoopView::Map(OwnDescriptor()).status()));
}

}  // namespace
}  // namespace terrace
