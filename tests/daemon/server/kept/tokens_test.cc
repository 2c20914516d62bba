// By what a process goes on with its runtime, and who cannot.
#include <random>
#include <string>

#include "daemon/client/control_client.h"
#include "gmock/gmock.h"
#include "terrace/version.h"
#include "tests/daemon/server/hostile/hostile_job.h"
#include "tests/daemon/server/hostile/played_process.h"
#include "tests/daemon/server/kept/revived_daemon.h"

namespace terrace {
namespace {

class TokensTest : public RevivedDaemonTest {
 protected:
  // What a Hello with that token is answered by.
  absl::StatusOr<Welcome> GoOn(const JobToken& token) {
    auto socket =
        PacketSocket::Connect(daemon_.socket(), Soon(), Descriptors::kTaken);
    if (!socket.ok()) return socket.status();
    auto welcome = AskFor<Welcome>(
        *socket, Hello{.version = kVersion, .token = token}, Soon());
    if (welcome.ok()) held_.push_back(*std::move(socket));
    return welcome;
  }
  void ReviveAndServe() {
    Revive();
    ASSERT_TRUE(daemon_.Serves());
  }

  std::vector<PacketSocket> held_;
};

TEST_F(TokensTest, OneServesOnce) {
  RawJob job(daemon_);
  const JobToken first = job.welcome().token;
  EXPECT_NE(first, JobToken{});
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(first).status()))
      << "the daemon that gave it lives";
  ReviveAndServe();
  const auto second = GoOn(first);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(second->token, first);
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(first).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(second->token).status()));
}

// The process may not have heard of the next one before that daemon went, too.
TEST_F(TokensTest, UntilTheNextIsUsedBothServe) {
  RawJob job(daemon_);
  ReviveAndServe();
  const auto second = GoOn(job.welcome().token);
  ASSERT_TRUE(second.ok()) << second.status();
  ReviveAndServe();
  const auto third = GoOn(job.welcome().token);
  ASSERT_TRUE(third.ok()) << third.status();
  ReviveAndServe();
  EXPECT_TRUE(GoOn(third->token).ok());
  ReviveAndServe();
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(second->token).status()));
}

TEST_F(TokensTest, AnothersIsRefused) {
  RawJob job(daemon_);
  ReviveAndServe();
  JobToken wrong = job.welcome().token;
  wrong[5] ^= std::byte{1};
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(wrong).status()));
  PlayedProcess thief([&](PlayedProcess::Stage& stage) {
    const absl::Status refused = GoOn(job.welcome().token).status();
    if (absl::IsPermissionDenied(refused)) stage.Tell();
    stage.Await();
  });
  EXPECT_TRUE(thief.HasTold());
  thief.Kill();
  EXPECT_TRUE(GoOn(job.welcome().token).ok());
}

// What is said before a claim, or a claim that is none, ends the connection,
// and the runtime with it.
TEST_F(TokensTest, AClaimComesFirstAndOnce) {
  RawJob job(daemon_);
  job.Ask(ClaimRequest());
  EXPECT_TRUE(absl::IsInvalidArgument(job.Hear().status()));
  RawJob other(daemon_);
  const JobToken token = other.welcome().token;
  ReviveAndServe();
  RawJob again(daemon_, token);
  again.Ask(StatsRequest{{.number = 1}});
  EXPECT_TRUE(absl::IsInvalidArgument(again.Hear().status()));
  EXPECT_TRUE(daemon_.WaitUntil([&] { return UsedMemory(daemon_) == 0; }));
}

// What it has pinned stays as it is, and counted to it.
TEST_F(TokensTest, WhoEndsBeforeItsClaimHasItsPinsAllTheSame) {
  RawJob job(daemon_);
  const TensorId tensor = job.Register(1, "a");
  const auto grant = job.Take(job.Open(2), tensor, Access::kOverwrite);
  ASSERT_TRUE(grant.ok()) << grant.status();
  const SharedMemory memory =
      *SharedMemory::Map(job.memory(), job.file_bytes(), 0);
  std::byte& pinned = memory.bytes()[static_cast<size_t>(grant->offset)];
  pinned = std::byte{77};
  ReviveAndServe();
  {
    RawJob again(daemon_, job.welcome().token);
    again.Ask(StatsRequest{{.number = 1}});
    EXPECT_FALSE(again.Hear().ok());
  }
  EXPECT_TRUE(daemon_.WaitUntil([&] { return daemon_.Kept().empty(); }));
  EXPECT_EQ(pinned, std::byte{77});
  EXPECT_EQ(UsedMemory(daemon_), kHostileMemory);
  EXPECT_THAT(daemon_.Kept(), testing::IsEmpty());
}

TEST_F(TokensTest, WhatNobodyClaimsIsGivenBackInTime) {
  const Hello hello{
      .version = kVersion, .memory_bytes = kHostileMemory, .patience_ms = 100};
  RawJob idle(daemon_, hello);
  idle.Register(1, "a");
  RawJob pins(daemon_, hello);
  const TensorId tensor = pins.Register(1, "a");
  ASSERT_TRUE(pins.Take(pins.Open(2), tensor, Access::kOverwrite).ok());
  const SharedMemory memory =
      *SharedMemory::Map(pins.memory(), pins.file_bytes(), 0);
  memory.bytes()[0] = std::byte{7};
  ReviveAndServe();
  EXPECT_EQ(UsedMemory(daemon_), 2 * kHostileMemory);
  EXPECT_TRUE(daemon_.WaitUntil([&] {
    return UsedMemory(daemon_) == kHostileMemory && UsedPath(daemon_) == 0;
  })) << "what is pinned stays counted";
  EXPECT_EQ(memory.bytes()[0], std::byte{7});
  EXPECT_THAT(daemon_.Kept(), testing::IsEmpty());
  EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(pins.welcome().token).status()));
}

// Whatever a process claims, it has what is its own.
TEST_F(TokensTest, AClaimOfWhatIsNotThereIsNothing) {
  RawJob job(daemon_);
  const TensorId tensor = job.Register(1, "a");
  const int64_t queue = job.Open(2);
  const auto grant = job.Take(queue, tensor, Access::kOverwrite);
  ASSERT_TRUE(grant.ok()) << grant.status();
  const JobToken token = job.welcome().token;
  ReviveAndServe();
  RawJob again(daemon_, token);
  ClaimRequest claim;
  claim.memory_bytes = INT64_MAX;
  claim.queues = {{.queue = 5, .step = 1}, {.queue = -7}};
  claim.pins = {grant->token, 12345, UINT64_MAX};
  claim.recalled = {grant->token, 3};
  claim.kept = {17};
  claim.known = {{-5, INT64_MAX}, {3, 1}, {INT64_MIN, 0}};
  claim.unregistering = {{99}, {-1}};
  again.Ask(claim);
  again.Ask(EndPinRequest{12345, PinEnd::kPublish});
  again.Ask(EndPinRequest{grant->token, PinEnd::kPublish});
  again.Ask(UnregisterRequest{{.number = 3}, tensor});
  EXPECT_EQ(again.Outcome(), absl::OkStatus());
  again.Ask(UnregisterRequest{{.number = 4}, {98}});
  EXPECT_FALSE(again.Outcome().ok());
  again.Ask(GrowRequest{{.number = 5}, 4096});
  EXPECT_FALSE(again.Outcome().ok());
}

}  // namespace
}  // namespace terrace
