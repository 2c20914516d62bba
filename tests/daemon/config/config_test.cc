#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/config/daemon_config.h"
#include "daemon/config/path_check.h"
#include "daemon/config/user_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr char kTiers[] = "tiers = ['dram=64GiB', 'nvme:/mnt/a=500GiB']\n";

absl::StatusOr<DaemonConfig> Parse(const std::string& text) {
  return ParseDaemonConfig(text, "d.toml");
}

// Of a text behind the line of tiers, so that it begins in line 2.
std::string MessageOf(const std::string& text) {
  const absl::Status status = Parse(kTiers + text).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(DaemonConfigTest, TiersAreThoseOfEverywhere) {
  const auto config = Parse(kTiers);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->TierSpecs(),
            (std::vector<TierSpec>{*ParseTier("dram=64GiB"),
                                   *ParseTier("nvme:/mnt/a=500GiB")}));
}

TEST(DaemonConfigTest, TheMostSpecificTableHolds) {
  const auto config = Parse(absl::StrCat(kTiers, R"(
    [quota.user]
    tiers = ["dram=48GiB"]
    connections = 16
    [quota.job]
    tiers = ["dram=32GiB"]
    requests = 256
    [users.alice]
    weight = 3
    [users.alice.job]
    requests = 64
    [users.alice.jobs.night]
    tiers = ["dram=40GiB"]
    weight = 2
    [users.1000]
    tiers = ["dram=8GiB"]
  )"));
  ASSERT_TRUE(config.ok()) << config.status();
  const Quota alice = config->OfUser("alice");
  EXPECT_EQ(alice.weight->count, 3);
  EXPECT_EQ(alice.connections->count, 16);
  EXPECT_EQ(alice.tier_bytes.at("dram").count, 48 * kGiB);
  const Quota night = config->OfJob("alice", "night");
  EXPECT_EQ(night.tier_bytes.at("dram").count, 40 * kGiB);
  EXPECT_EQ(night.requests->count, 64);
  EXPECT_EQ(night.weight->count, 2);
  const Quota day = config->OfJob("alice", "day");
  EXPECT_EQ(day.tier_bytes.at("dram").count, 32 * kGiB);
  EXPECT_FALSE(day.weight.has_value());
  // Others have what each has; a user who has less has less in all.
  EXPECT_EQ(config->OfJob("bob", "day").requests->count, 256);
  EXPECT_EQ(config->OfUser("bob").tier_bytes.at("dram").count, 48 * kGiB);
  EXPECT_EQ(config->OfUser("1000").tier_bytes.at("dram").count, 8 * kGiB);
}

TEST(DaemonConfigTest, NothingIsLimitedThatIsNotSaid) {
  const auto config = Parse(kTiers);
  ASSERT_TRUE(config.ok());
  const Quota job = config->OfJob("anyone", "any");
  EXPECT_TRUE(job.tier_bytes.empty());
  EXPECT_FALSE(job.arenas.has_value() || job.connections.has_value() ||
               job.requests.has_value() || job.weight.has_value());
}

TEST(DaemonConfigTest, TheDaemonsOwnKeys) {
  const auto config = Parse(kTiers);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->service.socket, "");
  EXPECT_EQ(config->service.group, "");
  EXPECT_EQ(config->service.operators, "");
  EXPECT_EQ(config->service.drain_seconds, 30);
  EXPECT_EQ(config->service.log, "info");
  EXPECT_EQ(config->service.pace_bytes_per_second, 0);
  const auto said =
      Parse(absl::StrCat(kTiers,
                         "socket = '/run/t/s'\ngroup = 'terrace'\n"
                         "operators = 'storage'\n"
                         "drain_seconds = 5\nlog = 'warning'\n"
                         "pace = '1.5 GB/s'\n"));
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->service.socket, "/run/t/s");
  EXPECT_EQ(said->service.group, "terrace");
  EXPECT_EQ(said->service.group_position.line, 3);
  EXPECT_EQ(said->service.operators, "storage");
  EXPECT_EQ(said->service.operators_position.line, 4);
  EXPECT_EQ(said->service.drain_seconds, 5);
  EXPECT_EQ(said->service.log, "warning");
  EXPECT_EQ(said->service.pace_bytes_per_second, 1'500'000'000);
  EXPECT_EQ(MessageOf("socket = 'here'\n"),
            "d.toml:2:10: socket is a path from / on");
  EXPECT_EQ(MessageOf("drain_seconds = 0\n"),
            "d.toml:2:17: drain_seconds is 1 to 3600, not 0");
  EXPECT_EQ(MessageOf("log = 'loud'\n"),
            "d.toml:2:7: log is debug, info, warning, error; not loud");
  for (const char* pace : {"400MB", "fast/s", "999KB/s", "/s", ""}) {
    EXPECT_EQ(MessageOf(absl::StrCat("pace = '", pace, "'\n")),
              absl::StrCat("d.toml:2:8: pace is bytes per second, such as "
                           "\"400MB/s\", and at least \"1MB/s\"; not ",
                           pace));
  }
  EXPECT_EQ(MessageOf("group = 1\n"),
            "d.toml:2:9: group is a text, not an integer");
}

TEST(DaemonConfigTest, WhatIsNoTomlSaysWhere) {
  EXPECT_THAT(MessageOf("[quota\n"), StartsWith("d.toml:2:7: "));
  EXPECT_THAT(MessageOf("a = 1\na = 2\n"), StartsWith("d.toml:3:"));
  EXPECT_THAT(MessageOf("a = '\xff'\n"), StartsWith("d.toml:2:"));
}

TEST(DaemonConfigTest, UnknownKeysSayWhereAndWhatIsKnown) {
  EXPECT_EQ(MessageOf("tires = []\n"),
            "d.toml:2:1: no such key: tires; known: tiers, socket, group, "
            "operators, drain_seconds, metrics, pace, log, quota, users");
  EXPECT_EQ(MessageOf("[quota.jobs]\n"),
            "d.toml:2:8: no such key: quota.jobs; known in quota: user, job");
  EXPECT_EQ(MessageOf("[quota.job]\narena = 1\n"),
            "d.toml:3:1: no such key: quota.job.arena; known in quota.job: "
            "tiers, arenas, connections, requests, weight");
  EXPECT_THAT(MessageOf("[users.alice]\njbo.weight = 1\n"),
              StartsWith("d.toml:3:1: no such key: users.alice.jbo; "));
  EXPECT_THAT(MessageOf("[users.alice.jobs.night.job]\nweight = 1\n"),
              HasSubstr("no such key: users.alice.jobs.night.job; "));
}

TEST(DaemonConfigTest, WrongValuesSayWhereAndWhatIsRight) {
  const std::pair<const char*, const char*> wrong[] = {
      {"quota = 1\n", "d.toml:2:9: quota is a table, not an integer"},
      {"quota.job.tiers = 'dram=1GiB'\n",
       "d.toml:2:19: quota.job.tiers is an array, not a text"},
      {"quota.job.tiers = [1]\n",
       "d.toml:2:20: quota.job.tiers has texts, not an integer"},
      {"quota.job.arenas = '1'\n",
       "d.toml:2:20: quota.job.arenas is an integer, not a text"},
      {"quota.job.weight = 1.5\n", "d.toml:2:20: quota.job.weight is an "},
      {"quota.job.weight = 0\n",
       "d.toml:2:20: quota.job.weight is 1 to 1000, not 0"},
      {"quota.job.arenas = -1\n", "quota.job.arenas is 1 to 1048576, not -1"},
      {"quota.job.requests = 1048577\n", "not 1048577"},
      {"quota.job.requests = 9223372036854775808\n", "d.toml:2:"},
      {"quota.job.tiers = ['dram']\n", "d.toml:2:20: "},
      {"quota.job.tiers = ['dram=1GiB', 'dram=2GiB']\n",
       "d.toml:2:33: dram is named twice"},
      {"quota.job.tiers = ['nvme:/mnt/a=all']\n", "it has no budget"},
      {"users.alice = 1\n", "d.toml:2:15: users.alice is a table"},
      {"users.alice.jobs.night = 1\n", "is a table, not an integer"}};
  for (const auto& [text, message] : wrong) {
    EXPECT_THAT(MessageOf(text), HasSubstr(message)) << text;
  }
}

TEST(DaemonConfigTest, ADaemonHasMemoryAndNoGpu) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "d.toml: tiers has no memory"},
      {"tiers = []\n", "d.toml:1:9: tiers has no memory"},
      {"tiers = ['nvme:/mnt/a=1GiB']\n", "tiers has no memory"},
      {"tiers = ['dram=1GiB', 'hbm:cuda:0=1GiB']\n",
       "d.toml:1:23: hbm:cuda:0=1GiB: a GPU's memory"},
      {"tiers = ['dram=1GiB', 'nvme:/mnt/a']\n",
       "d.toml:1:23: nvme:/mnt/a: it has no budget; write nvme:/mnt/a=100GiB"},
      {"tiers = ['dram=1GiB', 'dram=2GiB']\n", "dram is named twice"},
      {"tiers = ['dram:node1=1GiB', 'nvme:/a=1GiB', 'dram=2GiB']\n",
       "d.toml:1:45: dram: jobs have one memory, which is dram:node1"},
      {"tiers = ['dram=1GiB', 'tape:0=1GiB']\n", "d.toml:1:23: "}};
  for (const auto& [text, message] : wrong) {
    const absl::Status status = Parse(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
}

TEST(DaemonConfigTest, ImpossibleSumsSayBothNumbers) {
  EXPECT_EQ(MessageOf("quota.job.tiers = ['dram=64GiB', 'nvme:/b=1GiB']\n"),
            "d.toml:2:34: nvme:/b is no tier of this daemon; these are: dram, "
            "nvme:/mnt/a");
  EXPECT_EQ(MessageOf("quota.user.tiers = ['dram=65GiB']\n"),
            "d.toml:2:21: a quota of 69793218560 bytes of dram, which has "
            "68719476736 (line 1)");
  EXPECT_EQ(MessageOf("quota.user.tiers = ['dram=8GiB']\n"
                      "quota.job.tiers = ['dram=9GiB']\n"),
            "d.toml:3:20: each job may have 9663676416 bytes of dram, and all "
            "jobs of its user together 8589934592 (line 2)");
  EXPECT_THAT(MessageOf("users.a.connections = 2\n"
                        "users.a.job.connections = 3\n"),
              StartsWith("d.toml:3:27: each job of a may have 3 connections"));
  EXPECT_THAT(MessageOf("quota.user.requests = 2\n"
                        "users.a.jobs.night.requests = 3\n"),
              StartsWith("d.toml:3:31: job night of a may have 3 requests"));
}

TEST(DaemonConfigTest, AQuotaAtTheBudgetIsReached) {
  EXPECT_TRUE(Parse(absl::StrCat(kTiers, "quota.job.tiers = ['dram=64GiB']\n",
                                 "quota.user.tiers = ['dram=64GiB']\n"))
                  .ok());
  // A user who has less than each job may have.
  EXPECT_TRUE(Parse(absl::StrCat(kTiers, "quota.job.tiers = ['dram=64GiB']\n",
                                 "users.a.tiers = ['dram=1GiB']\n"))
                  .ok());
}

TEST(DaemonConfigTest, AFileThatCannotBeReadIsNamed) {
  const TemporaryDirectory directory;
  const std::string missing = directory.path() + "/missing.toml";
  const absl::Status status = ReadDaemonConfig(missing).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(missing + ": "));
  EXPECT_FALSE(ReadDaemonConfig(directory.path()).ok());
  // A file that never ends is not read to its end.
  EXPECT_THAT(std::string(ReadDaemonConfig("/dev/zero").status().message()),
              HasSubstr("more than 1048576 bytes"));
}

TEST(UserNamesTest, UsersAreThoseOfTheHost) {
  EXPECT_EQ(*UidOf("root"), 0u);
  EXPECT_EQ(*UidOf("0"), 0u);
  EXPECT_EQ(*UidOf("4000000000"), 4000000000u);
  EXPECT_TRUE(absl::IsNotFound(UidOf("no such user").status()));
  EXPECT_TRUE(absl::IsNotFound(UidOf("-1").status()));
  EXPECT_TRUE(absl::IsNotFound(UidOf("4294967296").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(UidOf("65534").status()));
}

TEST(UserNamesTest, AUserThatIsNobodyOrTwiceSaysWhere) {
  const auto check = [](const std::string& text) {
    const auto config = Parse(kTiers + text);
    EXPECT_TRUE(config.ok()) << config.status();
    return UidsOf(*config).status();
  };
  EXPECT_TRUE(check("users.root.weight = 2\n").ok());
  EXPECT_THAT(std::string(check("[users.no-such-user]\n").message()),
              StartsWith("d.toml:2:8: this host has no user no-such-user"));
  EXPECT_THAT(std::string(check("[users.65534]\n").message()),
              StartsWith("d.toml:2:8: the uid 65534 stands for all users"));
  EXPECT_THAT(std::string(check("[users.0]\n[users.root]\n").message()),
              EndsWith("users.root and users.0 are both the uid 0"));
}

TEST(UserNamesTest, AGroupThatThisHostDoesNotHaveSaysWhere) {
  const auto config =
      Parse(absl::StrCat(kTiers, "group = 'root'\noperators = 'no-such'\n"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(**GroupOf(*config), 0u);
  EXPECT_THAT(std::string(OperatorsOf(*config).status().message()),
              StartsWith("d.toml:3:13: this host has no group no-such"));
  EXPECT_EQ(*OperatorsOf(*Parse(kTiers)), std::nullopt);
}

TEST(PathCheckTest, AFileOrADeviceIsNoDaemons) {
  const TemporaryDirectory directory;
  const auto check = [](const std::string& tier) {
    const auto config =
        Parse(absl::StrCat("tiers = ['dram=1GiB', '", tier, "=1GiB']\n"));
    EXPECT_TRUE(config.ok()) << config.status();
    return CheckPaths(*config);
  };
  EXPECT_EQ(check("nvme:" + directory.path()), absl::OkStatus());
  EXPECT_EQ(check("nvme:" + directory.path() + "/none"), absl::OkStatus());
  EXPECT_EQ(check("far:node1"), absl::OkStatus());
  for (const std::string& tier : {"nvme:" + directory.Write("given", ""),
                                  "pmem:" + directory.Write("given", ""),
                                  std::string("nvme:/dev/null")}) {
    const absl::Status status = check(tier);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(std::string(status.message()),
              absl::StrCat("d.toml:1:23: ", tier,
                           ": a file or device is one job's; jobs share a "
                           "directory"));
  }
}

TEST(DaemonConfigTest, MetricsAreToldOnThisHostAlone) {
  const auto parse = [](const std::string& address) {
    const auto config =
        Parse(absl::StrCat(kTiers, "metrics = '", address, "'\n"));
    EXPECT_TRUE(config.ok()) << config.status();
    return MetricsAddressText(*config->service.metrics);
  };
  for (const char* const each :
       {"unix:/run/m.sock", "127.0.0.1:9464", "[::1]:1"}) {
    EXPECT_EQ(parse(each), each);
  }
  EXPECT_FALSE(Parse(kTiers)->service.metrics.has_value());
  for (const char* const each :
       {"", "unix:", "unix:run/m", "/run/m.sock", ":9464", "0.0.0.0:9464",
        "[::]:9464", "10.0.0.1:80", "localhost:80", "127.0.0.1", "127.0.0.1:",
        "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.2:80"}) {
    EXPECT_THAT(
        MessageOf(absl::StrCat("log = 'info'\nmetrics = '", each, "'\n")),
        StartsWith("d.toml:3:11: metrics is unix:/PATH, "))
        << each;
  }
  EXPECT_THAT(MessageOf("metrics = 9464\n"), StartsWith("d.toml:2:"));
}

}  // namespace
}  // namespace terrace
