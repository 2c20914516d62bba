// Far and persistent memory that a daemon gives to jobs: what goes down to it
// comes back, it is counted as it is used, and is nobody's once its job has
// gone.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/daemon/server/hostile/played_process.h"
#include "tests/daemon/server/media/media_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_P(MediaTest, WhatGoesDownComesBack) {
  const auto daemon = StartWith();
  auto job = ConnectAs(*daemon, kMemory, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(Used(*daemon), 0);
  CheckedTensors tensors(**job, 1);
  tensors.RegisterAll();
  tensors.WriteAll();
  tensors.CheckAll();
  for (int round = 0; round < 3; ++round) {
    tensors.WriteSome();
    tensors.CheckAll();
  }
  const Stats stats = (*job)->GetStats();
  ASSERT_EQ(stats.tiers.size(), 2u);
  EXPECT_EQ(stats.tiers[1].name, tier());
  EXPECT_EQ(stats.tiers[1].budget_bytes, 64 * kMib);
  EXPECT_EQ(stats.tiers[1].used_bytes, kTensors * kMib);
  EXPECT_GE(stats.tiers[1].traffic.bytes_written, (kTensors - 4) * kMib);
  EXPECT_GE(stats.tiers[1].traffic.bytes_read, (kTensors - 4) * kMib);
  // To the byte what has grown, for which the ledger stands.
  EXPECT_EQ(Used(*daemon), stats.tiers[1].capacity_bytes);
  EXPECT_TRUE((*job)->Close(Later()).ok());
  job->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 0; }));
  EXPECT_EQ(daemon->End().exit_code, 0);
  EXPECT_TRUE(IsEmpty());
}

TEST_P(MediaTest, AQuotaNamesTheTierTheLimitAndTheUse) {
  const auto daemon =
      StartWith(absl::StrCat("[quota.user]\ntiers = ['", tier(), "=12MiB']\n",
                             "[quota.job]\ntiers = ['", tier(), "=8MiB']\n"));
  auto one = ConnectAs(*daemon, kMemory, "night");
  auto two = ConnectAs(*daemon, kMemory, "day");
  ASSERT_TRUE(one.ok() && two.ok());
  CheckedTensors tensors(**one, 1);
  absl::Status refused;
  while (refused.ok()) refused = tensors.Register();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const std::string words = absl::StrCat(
      tier(), ": 1048576 bytes are too many: the job 'night' of uid ", getuid(),
      " has 8388608, and the limit is 8388608");
  EXPECT_THAT(std::string(refused.message()), HasSubstr(words));
  EXPECT_EQ(tensors.count(), 8u);
  EXPECT_EQ(Used(*daemon), 8 * kMib);
  tensors.WriteAll();
  tensors.CheckAll();
  CheckedTensors others(**two, 2);
  refused = absl::OkStatus();
  while (refused.ok()) refused = others.Register();
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(tier()), HasSubstr("the user "),
                    HasSubstr("has 12582912, and the limit is 12582912")));
  EXPECT_EQ(others.count(), 4u);
  // A single one that is more than there is.
  const absl::Status much =
      RegisterOf(**one, "much", int64_t{1} << 40).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much)) << much;
  EXPECT_THAT(std::string(much.message()), HasSubstr("the limit is 67108864"));
  one->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 4 * kMib; }));
  EXPECT_TRUE(others.Register().ok());
  const std::string log = daemon->End().errors;
  EXPECT_THAT(log, HasSubstr(words));
}

TEST_P(MediaTest, TwoAtOnceHaveTheirOwnBytes) {
  const auto daemon = StartWith();
  auto one = ConnectAs(*daemon, kMemory, "one");
  auto two = ConnectAs(*daemon, kMemory, "two");
  ASSERT_TRUE(one.ok() && two.ok());
  CheckedTensors first(**one, 1);
  CheckedTensors second(**two, 2);
  first.RegisterAll();
  second.RegisterAll();
  for (int round = 0; round < 2; ++round) {
    first.WriteAll();
    second.WriteAll();
    first.CheckAll();
    second.CheckAll();
  }
  const int64_t both = Used(*daemon);
  EXPECT_GE(both, 2 * kTensors * kMib);
  two->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) <= both / 2; }));
  first.CheckAll();
}

TEST_P(MediaTest, OfAProcessThatIsKilledNothingIsLeft) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  const auto daemon = StartWith();
  auto other = ConnectAs(*daemon, kMemory, "other");
  ASSERT_TRUE(other.ok());
  CheckedTensors kept(**other, 1);
  kept.RegisterAll();
  kept.WriteAll();
  const int64_t before = Used(*daemon);
  for (uint32_t round = 0; round < 3; ++round) {
    PlayedProcess killed([&](PlayedProcess::Stage& stage) {
      auto job = ConnectAs(*daemon, kMemory, "killed");
      if (!job.ok()) return;
      CheckedTensors tensors(**job, 7);
      tensors.RegisterAll();
      if (round == 0) stage.Tell();
      tensors.WriteAll();
      if (round == 1) stage.Tell();
      while (true) {
        tensors.WriteSome();
        tensors.CheckAll();
        if (round == 2) stage.Tell();
      }
    });
    ASSERT_TRUE(killed.HasTold());
    EXPECT_GT(Used(*daemon), before);
    killed.Kill();
    killed.Reap();
    EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == before; }));
  }
  kept.CheckAll();
  other->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 0; }));
  EXPECT_EQ(daemon->End().exit_code, 0);
  EXPECT_TRUE(IsEmpty());
}

// What has no room there goes to the disk.
TEST_P(MediaTest, ADiskBelowTakesTheRest) {
  const TemporaryDirectory disk;
  const auto daemon =
      StartWith(absl::StrCat("[quota.job]\ntiers = ['", tier(), "=8MiB']\n"),
                absl::StrCat(", 'nvme:", disk.path(), "=64MiB'"));
  auto job = ConnectAs(*daemon, kMemory);
  ASSERT_TRUE(job.ok()) << job.status();
  CheckedTensors tensors(**job, 3);
  tensors.RegisterAll();
  tensors.WriteAll();
  tensors.CheckAll();
  tensors.WriteSome();
  tensors.CheckAll();
  const auto status = daemon->Status();
  ASSERT_TRUE(status.ok());
  EXPECT_LE(status->tiers.at(1).used_bytes, 8 * kMib);
  EXPECT_GE(status->tiers.at(2).used_bytes, (kTensors - 8) * kMib);
}

TEST(MediaConfigTest, AFileOrADeviceIsOneJobs) {
  const TemporaryDirectory directory;
  RunningDaemon daemon(
      "", {.tiers = absl::StrCat(
               "'dram=8MiB', 'pmem:", directory.Write("given", ""), "=8MiB'"),
           .program = PLAIN_MEDIA_DAEMON});
  EXPECT_FALSE(daemon.Serves());
  EXPECT_THAT(daemon.Wait().errors, HasSubstr("a file or device is one job's"));
}

TEST(MediaConfigTest, ATierThatIsNotThereIsNamed) {
  const TemporaryDirectory directory;
  std::vector<std::pair<std::string, std::string>> wrong = {
      {"far:node99=8MiB", "there is no node99"}};
  if (PersistDomain::CheckAvailable().ok()) {
    wrong.emplace_back(absl::StrCat("pmem:", directory.path(), "/none=8MiB"),
                       "ENOENT");
  }
  for (const auto& [tier, why] : wrong) {
    RunningDaemon daemon("",
                         {.tiers = absl::StrCat("'dram=8MiB', '", tier, "'")});
    EXPECT_FALSE(daemon.Serves());
    EXPECT_THAT(
        daemon.Wait().errors,
        AllOf(HasSubstr(absl::StrCat("tier '", tier, "'")), HasSubstr(why)));
  }
}

INSTANTIATE_TEST_SUITE_P(, MediaTest, kMediaTiers, MediaName);

}  // namespace
}  // namespace terrace
