#include "runtime/mover/closing.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using Asked = std::shared_ptr<Question>;

class ClosingTest : public testing::Test {
 protected:
  Asked Ask(absl::Duration patience = absl::InfiniteDuration(),
            bool force = false) {
    auto asked = std::make_shared<Question>(*core_.port);
    closing_.Add(
        {.id = asked->id(), .deadline = now() + patience, .force = force});
    return asked;
  }
  bool Advance(const std::string& holders = "", uint64_t processed = 0) {
    return closing_.Advance(now(), processed, holders);
  }
  void RunBackground() {
    for (auto& each : core_.machine.background) each.RunAll();
    core_.Hear();
  }
  absl::Status Get(const Asked& asked) {
    return asked->AwaitStatus(core_.machine.clock);
  }
  absl::Time now() { return core_.machine.clock.Now(); }
  // Files that were not removed before the background has run.
  bool Removes() const { return !core_.resting.unremoved().empty(); }

  TestCore core_;
  Closing closing_{{.links = &core_.links,
                    .transfers = &core_.transfers,
                    .resting = &core_.resting,
                    .working = &core_.working,
                    .spill = &core_.spill,
                    .inbox = core_.inbox.get(),
                    .ports = &core_.ports}};
};

TEST_F(ClosingTest, TheFilesGoAndThenItEnds) {
  EXPECT_FALSE(closing_.begun());
  const Asked reply = Ask();
  EXPECT_TRUE(closing_.begun());
  EXPECT_FALSE(Advance());
  EXPECT_TRUE(Removes());
  RunBackground();
  EXPECT_TRUE(Advance());
  EXPECT_FALSE(closing_.ended());
  closing_.End(/*pinned=*/false, {.hits = 5});
  EXPECT_TRUE(closing_.ended());
  EXPECT_FALSE(closing_.abandoned());
  EXPECT_TRUE(Get(reply).ok());
  EXPECT_EQ(closing_.final_stats().hits, 5);
  EXPECT_EQ(closing_.final_stats().host.leaked_bytes, 0);
  EXPECT_EQ(core_.machine.files[0]->removals, 1);
  EXPECT_EQ(core_.machine.files[1]->removals, 1);
}

TEST_F(ClosingTest, WhileAnythingIsHeldItIsRefusedUnlessForced) {
  const Asked reply = Ask();
  EXPECT_FALSE(Advance("1 queues, 'a'"));
  EXPECT_EQ(Get(reply),
            absl::FailedPreconditionError("still held: 1 queues, 'a'"));
  EXPECT_FALSE(Removes());
  EXPECT_FALSE(Advance());  // no request is left
  Ask(absl::InfiniteDuration(), /*force=*/true);
  EXPECT_FALSE(Advance("1 queues, 'a'"));
  EXPECT_TRUE(Removes());
}

TEST_F(ClosingTest, HoldersAreKnownOnceTheirPinsHaveBeenHeardOf) {
  const Asked reply = Ask();
  closing_.WaitFor(7);
  EXPECT_FALSE(Advance("'a'", 6));
  EXPECT_FALSE(Removes());
  EXPECT_FALSE(Advance("", 7));
  EXPECT_TRUE(Removes());
}

TEST_F(ClosingTest, TransfersAreWaitedFor) {
  Tensor& tensor = core_.Add("a");
  core_.Write(tensor);
  core_.transfers.StartDrain(tensor, kDisk0, {});
  Ask();
  Advance();
  RunBackground();  // and what is sealed moves
  EXPECT_FALSE(Advance());
  core_.Settle();
  EXPECT_TRUE(Advance());
}

TEST_F(ClosingTest, ARemovalThatFailsIsItsAnswer) {
  core_.machine.files[1]->remove_status = absl::UnavailableError("EBUSY");
  const Asked reply = Ask();
  Advance();
  RunBackground();
  ASSERT_TRUE(Advance());
  closing_.End(false, {});
  EXPECT_EQ(Get(reply), absl::UnavailableError("EBUSY"));
}

TEST_F(ClosingTest, PastItsDeadlineItEndsAndNamesWhatIsLeft) {
  const Asked first = Ask(absl::Seconds(9));
  const Asked second = Ask(absl::Seconds(3));
  EXPECT_EQ(closing_.NextDeadline(), now() + absl::Seconds(3));
  EXPECT_FALSE(Advance());
  core_.machine.clock.JumpTo(now() + absl::Seconds(3));
  EXPECT_TRUE(Advance());
  closing_.End(false, {});
  for (const Asked& each : {first, second}) {
    EXPECT_EQ(Get(each), absl::DeadlineExceededError(
                             "closing: disk0/state could not be removed in "
                             "time; disk1/state could not be removed in time"));
  }
  EXPECT_FALSE(closing_.abandoned());  // no bytes are used any more
}

TEST_F(ClosingTest, APinThatIsHeldKeepsTheMemory) {
  Ask(absl::InfiniteDuration(), /*force=*/true);
  Advance("'a'");
  RunBackground();
  ASSERT_TRUE(Advance("'a'"));
  closing_.End(/*pinned=*/true, {});
  EXPECT_TRUE(closing_.abandoned());
  EXPECT_EQ(closing_.final_stats().host.leaked_bytes, 64 * kPage);
}

TEST_F(ClosingTest, WhatWasAskedMeanwhileIsAnswered) {
  const Asked close = Ask();
  Port& port = *core_.port;
  Question opened(port);
  Question stats(port);
  const Asked again = std::make_shared<Question>(port);
  Question gone(port);
  Question grown(port);
  core_.inbox->Post(OpenRequest{.id = opened.id()});
  core_.inbox->Post(StatsRequest{stats.id()});
  core_.inbox->Post(CloseRequest{.id = again->id()});
  core_.inbox->Post(UnregisterRequest{gone.id(), TensorId{0}});
  core_.inbox->Post(GrowRequest{grown.id(), kPage});
  core_.inbox->Post(PushRequest{});  // nothing waits
  core_.inbox->Post(Sealed{1});
  closing_.End(false, {.hits = 5});
  Clock& clock = core_.machine.clock;
  EXPECT_EQ(opened.Await<OpenedQueue>(clock).status(), Closing::Closed());
  EXPECT_EQ(gone.AwaitStatus(clock), Closing::Closed());
  EXPECT_EQ(grown.AwaitStatus(clock), Closing::Closed());
  EXPECT_TRUE(absl::IsCancelled(Closing::Closed()));
  EXPECT_EQ(stats.Await<Stats>(clock)->hits, 5);
  EXPECT_TRUE(Get(again).ok());
  EXPECT_TRUE(Get(close).ok());
  EXPECT_FALSE(core_.inbox->Post(StatsRequest{stats.id()}));
}

TEST_F(ClosingTest, ATransferThatNeverEndsLeavesEverythingBehind) {
  Tensor& tensor = core_.Add("a");
  core_.Write(tensor);
  core_.transfers.StartDrain(tensor, kDisk0, {});
  const Asked reply = Ask(absl::Seconds(1));
  Advance();
  RunBackground();
  core_.Poll();
  core_.machine.clock.JumpTo(now() + absl::Seconds(1));
  ASSERT_TRUE(Advance());
  closing_.End(false, {});
  core_.is_abandoned = true;
  EXPECT_TRUE(closing_.abandoned());
  EXPECT_EQ(closing_.final_stats().host.leaked_bytes, 64 * kPage);
  EXPECT_EQ(Get(reply),
            absl::DeadlineExceededError(
                "closing: 1 transfers and 0 tasks never ended; the arena of "
                "262144 bytes is leaked"));
  EXPECT_EQ(core_.dram.usage().used_bytes, 2 * kPage);
}

}  // namespace
}  // namespace terrace
