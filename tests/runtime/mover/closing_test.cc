#include "runtime/mover/closing.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using Answer = std::shared_ptr<Reply<absl::Status>>;

class ClosingTest : public testing::Test {
 protected:
  Answer Ask(absl::Duration patience = absl::InfiniteDuration(),
             bool force = false) {
    auto reply = std::make_shared<Reply<absl::Status>>();
    closing_.Add(
        {.deadline = now() + patience, .force = force, .reply = reply});
    return reply;
  }
  bool Advance(const std::string& holders = "", uint64_t processed = 0) {
    return closing_.Advance(now(), processed, holders);
  }
  void RunBackground() {
    for (auto& each : core_.machine.background) each.RunAll();
    core_.Hear();
  }
  absl::Status Get(const Answer& reply) {
    return reply->Await(core_.machine.clock);
  }
  absl::Time now() { return core_.machine.clock.Now(); }
  // Files that were not removed before the background has run.
  bool Removes() const { return !core_.resting.unremoved().empty(); }

  TestCore core_;
  Closing closing_{{.links = &core_.links,
                    .transfers = &core_.transfers,
                    .resting = &core_.resting,
                    .dram = &core_.dram,
                    .inbox = core_.inbox.get()}};
};

TEST_F(ClosingTest, TheFilesGoAndThenItEnds) {
  EXPECT_FALSE(closing_.begun());
  const Answer reply = Ask();
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
  const Answer reply = Ask();
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
  const Answer reply = Ask();
  closing_.WaitFor(7);
  EXPECT_FALSE(Advance("'a'", 6));
  EXPECT_FALSE(Removes());
  EXPECT_FALSE(Advance("", 7));
  EXPECT_TRUE(Removes());
}

TEST_F(ClosingTest, TransfersAreWaitedFor) {
  Tensor& tensor = core_.Add("a");
  core_.Write(tensor);
  core_.transfers.StartDrain(tensor, 1, {});
  Ask();
  Advance();
  RunBackground();  // and what is sealed moves
  EXPECT_FALSE(Advance());
  core_.Settle();
  EXPECT_TRUE(Advance());
}

TEST_F(ClosingTest, ARemovalThatFailsIsItsAnswer) {
  core_.machine.files[1]->remove_status = absl::UnavailableError("EBUSY");
  const Answer reply = Ask();
  Advance();
  RunBackground();
  ASSERT_TRUE(Advance());
  closing_.End(false, {});
  EXPECT_EQ(Get(reply), absl::UnavailableError("EBUSY"));
}

TEST_F(ClosingTest, PastItsDeadlineItEndsAndNamesWhatIsLeft) {
  const Answer first = Ask(absl::Seconds(9));
  const Answer second = Ask(absl::Seconds(3));
  EXPECT_EQ(closing_.NextDeadline(), now() + absl::Seconds(3));
  EXPECT_FALSE(Advance());
  core_.machine.clock.JumpTo(now() + absl::Seconds(3));
  EXPECT_TRUE(Advance());
  closing_.End(false, {});
  for (const Answer& each : {first, second}) {
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
  const Answer close = Ask();
  auto opened = std::make_shared<Reply<absl::StatusOr<OpenedQueue>>>();
  auto stats = std::make_shared<Reply<Stats>>();
  auto again = std::make_shared<Reply<absl::Status>>();
  auto gone = std::make_shared<Reply<absl::Status>>();
  core_.inbox->Post(OpenRequest{.reply = opened});
  core_.inbox->Post(StatsRequest{stats});
  core_.inbox->Post(CloseRequest{.reply = again});
  core_.inbox->Post(UnregisterRequest{TensorId{0}, gone});
  core_.inbox->Post(PushRequest{});  // nothing waits
  core_.inbox->Post(Sealed{1});
  closing_.End(false, {.hits = 5});
  EXPECT_EQ(opened->Await(core_.machine.clock).status(), Closing::Closed());
  EXPECT_EQ(gone->Await(core_.machine.clock), Closing::Closed());
  EXPECT_TRUE(absl::IsCancelled(Closing::Closed()));
  EXPECT_EQ(stats->Await(core_.machine.clock).hits, 5);
  EXPECT_TRUE(Get(again).ok());
  EXPECT_TRUE(Get(close).ok());
  EXPECT_FALSE(core_.inbox->Post(StatsRequest{stats}));
}

TEST_F(ClosingTest, ATransferThatNeverEndsLeavesEverythingBehind) {
  Tensor& tensor = core_.Add("a");
  core_.Write(tensor);
  core_.transfers.StartDrain(tensor, 1, {});
  const Answer reply = Ask(absl::Seconds(1));
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
