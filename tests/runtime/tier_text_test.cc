#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/tier.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(TierTextTest, EveryKindIsReadAndSaidAgain) {
  const std::pair<const char*, TierSpec> texts[] = {
      {"hbm:cuda:0=10GiB", {TierKind::kHbm, "cuda:0", 10 * kGiB}},
      {"dram=8GiB", {TierKind::kDram, "", 8 * kGiB}},
      {"dram:node1=8GiB", {TierKind::kDram, "node1", 8 * kGiB}},
      {"far:node2=64GiB", {TierKind::kFar, "node2", 64 * kGiB}},
      {"far:node2", {TierKind::kFar, "node2", 0}},
      {"pmem:/mnt/pmem0=100GiB", {TierKind::kPmem, "/mnt/pmem0", 100 * kGiB}},
      {"pmem:/dev/dax0.0", {TierKind::kPmem, "/dev/dax0.0", 0}},
      {"nvme:/mnt/nvme0=500GiB", {TierKind::kDisk, "/mnt/nvme0", 500 * kGiB}},
      {"nvme:/mnt/nvme0", {TierKind::kDisk, "/mnt/nvme0", 0}},
      {"nvme:/mnt/a:b=c=3KiB", {TierKind::kDisk, "/mnt/a:b=c", 3 << 10}},
      {"nvme:relative=4097", {TierKind::kDisk, "relative", 4097}},
  };
  for (const auto& [text, spec] : texts) {
    const absl::StatusOr<TierSpec> tier = ParseTier(text);
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_EQ(*tier, spec) << text;
    EXPECT_EQ(TierText(*tier), text);
  }
}

TEST(TierTextTest, BudgetsAreSaidInTheirLargestWholeUnit) {
  const auto said = [](const char* text) {
    return TierText(ParseTier(text).value_or(TierSpec()));
  };
  EXPECT_EQ(said("dram=1024GiB"), "dram=1TiB");
  EXPECT_EQ(said("dram=1.5GiB"), "dram=1536MiB");
  EXPECT_EQ(said("dram=2GB"), "dram=1953125KiB");
  EXPECT_EQ(said("dram=9007199254740993"), "dram=9007199254740993");
}

TEST(TierTextTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"", "not ''"},
      {"disk:/mnt/a", "not 'disk'"},
      {"DRAM=1GiB", "not 'DRAM'"},
      {"dram", "dram needs a budget"},
      {"dram:node1", "dram needs a budget"},
      {"hbm:cuda:0", "hbm needs a budget"},
      {"dram=8XiB", "its budget is 8XiB"},
      {"dram=0", "its budget is 0"},
      {"dram=-1", "its budget is -1"},
      {"dram=", "its budget is ,"},
      {"dram:1=8GiB", "a memory node, node1, or none"},
      {"dram:node=8GiB", "a memory node, node1, or none"},
      {"dram:node-1=8GiB", "a memory node, node1, or none"},
      {"dram:node01=8GiB", "a memory node, node1, or none"},
      {"far=8GiB", "a memory node, node1;"},
      {"hbm=8GiB", "a device, cuda:0"},
      {"hbm:cuda:=8GiB", "a device, cuda:0"},
      {"hbm:0=8GiB", "a device, cuda:0"},
      {"nvme=8GiB", "its place is a path"},
      {"nvme:=8GiB", "its place is a path"},
      {"pmem", "its place is a path"},
      {"nvme:/mnt/a=b", "its budget is b"},
  };
  for (const auto& [text, why] : wrongs) {
    const absl::Status status = ParseTier(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("tier '" + std::string(text) + "'"));
  }
}

TEST(TierTextTest, ANodeHasItsNumber) {
  EXPECT_EQ(NodeOf({.place = "node12"}), 12);
  EXPECT_EQ(NodeOf({.place = "node0"}), 0);
  EXPECT_EQ(NodeOf({.place = "node99999999999"}), -1);
  EXPECT_EQ(NodeOf({.place = "nodes"}), -1);
  EXPECT_EQ(NodeOf({.place = ""}), -1);
}

TEST(TierTextTest, BytesTakeUnitsOfBothKinds) {
  const auto bytes = [](const char* text) {
    return ParseBytes(text).value_or(-1);
  };
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("64MiB"), 64 << 20);
  EXPECT_EQ(bytes("64 MiB"), 64 << 20);
  EXPECT_EQ(bytes("1.5GiB"), 3 << 29);
  EXPECT_EQ(bytes("2GB"), 2000000000);
  EXPECT_EQ(bytes("7b"), 7);
  EXPECT_EQ(bytes("4TiB"), int64_t{4} << 40);
  for (const char* bad : {"", "MiB", "-1", "0", "1XiB", "1e30", "nan", "0.2",
                          "9223372036854775807"}) {
    EXPECT_EQ(bytes(bad), -1) << bad;
  }
}

}  // namespace
}  // namespace terrace
