#include "tiers/tier_options.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/byte_units.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TierSpec kMemory = {TierKind::kDram, "", 8 * kMiB};

Options WithTiers(std::vector<TierSpec> tiers) {
  Options options;
  options.tiers = std::move(tiers);
  return options;
}

TEST(TierOptionsTest, ShortFormsAreTiersWithoutDiskBudgets) {
  Options options;
  options.host_budget_bytes = 8 * kMiB;
  options.numa_node = 1;
  options.paths = {"/a", "/b"};
  const auto tiers = TiersOf(options);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, ElementsAre(TierSpec{TierKind::kDram, "node1", 8 * kMiB},
                                  TierSpec{TierKind::kDisk, "/a", 0},
                                  TierSpec{TierKind::kDisk, "/b", 0}));
}

TEST(TierOptionsTest, MemoryIsFirstAndDisksKeepTheirOrder) {
  const TierSpec b = {TierKind::kDisk, "/b", 5 * kMiB};
  const TierSpec a = {TierKind::kDisk, "/a", 0};
  const TierSpec c = {TierKind::kDisk, "/c", 1 * kMiB};
  const auto tiers = TiersOf(WithTiers({b, a, kMemory, c}));
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, ElementsAre(kMemory, b, a, c));
}

TEST(TierOptionsTest, SeveralOfAKindKeepTheirOrder) {
  const TierSpec one = {TierKind::kDram, "node1", kMiB};
  const TierSpec zero = {TierKind::kDram, "node0", kMiB};
  const TierSpec second = {TierKind::kHbm, "cuda:1", kMiB};
  const TierSpec first = {TierKind::kHbm, "cuda:0", kMiB};
  const auto tiers = TiersOf(WithTiers({second, one, first, zero}));
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, ElementsAre(one, zero, second, first));
}

struct Refused {
  std::string why;
  std::vector<TierSpec> tiers;
};

TEST(TierOptionsTest, WhatCannotBeIsRefusedByItsName) {
  const TierSpec disk = {TierKind::kDisk, "/a", 0};
  const Refused refused[] = {
      {"no tier of memory", {disk}},
      {"tiers 'dram=8MiB' and 'dram:node1=4MiB': each of several memories has "
       "a node of its own",
       {kMemory, disk, {TierKind::kDram, "node1", 4 * kMiB}}},
      {"tiers 'dram:node1=1MiB' and 'dram:node1=4MiB'",
       {{TierKind::kDram, "node1", kMiB},
        {TierKind::kDram, "node0", kMiB},
        {TierKind::kDram, "node1", 4 * kMiB}}},
      {"path '/a' is named twice", {disk, kMemory, disk}},
      {"path 'cuda:0' is named twice",
       {kMemory,
        {TierKind::kHbm, "cuda:0", kMiB},
        {TierKind::kHbm, "cuda:0", kMiB}}},
      {"tier 'dram:node1=4KiB': a host budget of 4096 bytes",
       {{TierKind::kDram, "node0", kMiB}, {TierKind::kDram, "node1", 4096}}},
      {"no tier of memory", {{TierKind::kHbm, "cuda:0", kMiB}}},
      {"its place is a path", {kMemory, {TierKind::kDisk, "", 0}}},
      {"a budget of -5 bytes", {kMemory, {TierKind::kDisk, "/a", -5}}},
      {"dram needs a budget", {{TierKind::kDram, "", 0}, disk}},
      {"its place is a memory node", {{TierKind::kDram, "/a", kMiB}}},
      {"tier 'dram=4KiB': a host budget of 4096 bytes; the least is 24576",
       {{TierKind::kDram, "", 4096}}},
  };
  for (const Refused& each : refused) {
    const absl::Status status = TiersOf(WithTiers(each.tiers)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.why));
  }
}

TEST(TierOptionsTest, ADeviceComesBehindTheMemoryThatItIsAbove) {
  const TierSpec device = {TierKind::kHbm, "cuda:0", kMiB};
  const TierSpec disk = {TierKind::kDisk, "/a", 0};
  const auto tiers = TiersOf(WithTiers({disk, device, kMemory}));
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, ElementsAre(kMemory, device, disk));
}

TEST(TierOptionsTest, FasterKindsComeFirstAndKeepTheirOrder) {
  const TierSpec disk = {TierKind::kDisk, "/a", 0};
  const TierSpec pmem = {TierKind::kPmem, "/p", 5 * kMiB};
  const TierSpec other = {TierKind::kPmem, "/o", 0};
  const TierSpec far = {TierKind::kFar, "node2", 0};
  const auto tiers = TiersOf(WithTiers({disk, pmem, far, other, kMemory}));
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, ElementsAre(kMemory, far, pmem, other, disk));
}

TEST(TierOptionsTest, APlaceIsOfOneTier) {
  const TierSpec far = {TierKind::kFar, "node2", kMiB};
  const absl::Status twice = TiersOf(WithTiers({kMemory, far, far})).status();
  EXPECT_EQ(twice.message(), "memory 'node2' is named twice");
  const absl::Status shared = TiersOf(WithTiers({kMemory,
                                                 {TierKind::kPmem, "/a", kMiB},
                                                 {TierKind::kDisk, "/a", 0}}))
                                  .status();
  EXPECT_EQ(shared.message(), "path '/a' is named twice");
}

TEST(TierOptionsTest, TiersAndAShortFormTogetherAreRefused) {
  const auto status_with = [](auto set) {
    Options options = WithTiers({kMemory});
    set(options);
    const absl::Status status = TiersOf(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(status_with([](Options& o) { o.host_budget_bytes = 5; }),
            "tiers and host_budget_bytes together");
  EXPECT_EQ(status_with([](Options& o) { o.paths = {"/a"}; }),
            "tiers and paths together");
  EXPECT_EQ(status_with([](Options& o) { o.memory_paths = 1; }),
            "tiers and memory_paths together");
  EXPECT_EQ(status_with([](Options& o) { o.numa_node = 0; }),
            "tiers and numa_node together");
}

}  // namespace
}  // namespace terrace
