#include "tiers/memory/far_medium.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/tier.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kFarPage = 4096;

Topology TwoNodes() {
  Topology topology;
  topology.nodes = {{.os_index = 0, .memory_bytes = 8 << 20, .cpus = {0, 1}},
                    {.os_index = 2, .memory_bytes = 4 << 20}};
  return topology;
}

TEST(FarMediumTest, AnotherNodesMemoryWillDo) {
  const Topology two = TwoNodes();
  EXPECT_TRUE(
      CheckFarNode(two, {.node = 2, .budget_bytes = 4 << 20, .near_node = 0})
          .ok());
  EXPECT_TRUE(CheckFarNode(two, {.node = 2, .near_node = 0}).ok());
  EXPECT_TRUE(CheckFarNode(two, {.node = 0, .near_node = 2}).ok());
}

TEST(FarMediumTest, ANodeThatIsNotThereIsRefusedWithThoseThatAre) {
  const absl::Status refused =
      CheckFarNode(TwoNodes(), {.node = 1, .near_node = 0});
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "there is no node1; this machine has node0 with 8388608 bytes, "
            "node2 with 4194304 bytes");
}

TEST(FarMediumTest, TheNodeOfMemoryItselfIsNotFar) {
  const absl::Status refused =
      CheckFarNode(TwoNodes(), {.node = 0, .near_node = 0});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("node2 with 4194304"));
  Topology one = TwoNodes();
  one.nodes.pop_back();
  const absl::Status only = CheckFarNode(one, {.node = 0});
  EXPECT_TRUE(absl::IsInvalidArgument(only)) << only;
  EXPECT_THAT(std::string(only.message()), HasSubstr("only memory node"));
}

TEST(FarMediumTest, ABudgetBeyondTheNodeIsRefused) {
  const absl::Status refused = CheckFarNode(
      TwoNodes(), {.node = 2, .budget_bytes = (4 << 20) + 1, .near_node = 0});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(), "4194305 bytes of node2, which has 4194304");
}

// Whatever this machine has: a node past its last is not there.
TEST(FarMediumTest, OfThisMachineTheSameHolds) {
  const absl::StatusOr<Topology> machine = ReadTopology();
  ASSERT_TRUE(machine.ok()) << machine.status();
  int last = 0;
  for (const NumaNode& node : machine->nodes) {
    last = std::max(last, node.os_index);
  }
  const auto absent = FarMedium::Open({.node = last + 1, .near_node = 0});
  EXPECT_TRUE(absl::IsUnavailable(absent.status())) << absent.status();
}

// On a machine with a second node its pages are there; else there is none.
TEST(FarMediumTest, ItsPagesLieOnItsNode) {
  const absl::StatusOr<Topology> machine = ReadTopology();
  ASSERT_TRUE(machine.ok()) << machine.status();
  if (machine->nodes.size() < 2) {
    GTEST_SKIP() << "this machine has one memory node";
  }
  const int far = machine->nodes.back().os_index;
  const auto medium =
      FarMedium::Open({.node = far,
                       .budget_bytes = 1 << 20,
                       .near_node = machine->nodes.front().os_index});
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_EQ((*medium)->size_bytes(), 1 << 20);
}

TEST(FarMediumTest, WhatIsWrittenIsReadAtAnyOffset) {
  HostArenaOptions options;
  options.size_bytes = 4 * kFarPage;
  options.huge_pages = HugePages::kOff;
  FarMedium medium("node7", *HostArena::Create(options));
  EXPECT_EQ(medium.name(), "node7");
  EXPECT_EQ(medium.size_bytes(), 4 * kFarPage);
  std::vector<std::byte> plain(4 * kFarPage);
  for (const auto& [offset, size] : {std::pair<int64_t, int64_t>{0, 1},
                                     {4095, 4098},
                                     {3 * kFarPage, kFarPage},
                                     {17, 0}}) {
    std::vector<std::byte> from(static_cast<size_t>(size));
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(offset));
    }
    ASSERT_TRUE(medium.Write(offset, from).ok());
    std::copy(from.begin(), from.end(), plain.begin() + offset);
    std::vector<std::byte> all(plain.size());
    ASSERT_TRUE(medium.Read(0, absl::MakeSpan(all)).ok());
    EXPECT_EQ(all, plain);
  }
  EXPECT_DEATH(
      medium.Write(4 * kFarPage, std::vector<std::byte>(1)).IgnoreError(),
      "internal error");
}

TEST(FarMediumTest, OneThatGrowsHasWhatItTook) {
  FarMedium medium("node7",
                   *HostArena::Create({.growth_bytes = 4 * kFarPage,
                                       .huge_pages = HugePages::kOff}),
                   4 * kFarPage);
  EXPECT_EQ(medium.size_bytes(), 0);
  EXPECT_EQ(medium.most_bytes(), 4 * kFarPage);
  EXPECT_EQ(*medium.Grow({.least_bytes = kFarPage, .bytes = kFarPage}),
            kFarPage);
  EXPECT_EQ(medium.size_bytes(), kFarPage);
  std::vector<std::byte> from(kFarPage, std::byte{7});
  ASSERT_TRUE(medium.Write(0, from).ok());
  // The least, where there is not all.
  EXPECT_EQ(*medium.Grow({kFarPage, 2 * kFarPage, 8 * kFarPage}), 2 * kFarPage);
  const absl::Status much =
      medium.Grow({3 * kFarPage, 2 * kFarPage, 2 * kFarPage}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much)) << much;
  EXPECT_THAT(std::string(much.message()), HasSubstr("node7: "));
  std::vector<std::byte> all(3 * kFarPage);
  ASSERT_TRUE(medium.Read(0, absl::MakeSpan(all)).ok());
  from.resize(all.size());
  EXPECT_EQ(all, from);
  EXPECT_TRUE(medium.Remove().ok());
}

// As a process that was killed leaves it.
TEST(FarMediumTest, WhatAnotherProcessLeftIsAsItWas) {
  HostArenaOptions options{.growth_bytes = 4 * kFarPage,
                           .huge_pages = HugePages::kOff,
                           .shared = true};
  FarMedium left("node0", *HostArena::Create(options), 4 * kFarPage);
  ASSERT_TRUE(left.Grow({0, 3 * kFarPage, 3 * kFarPage}).ok());
  std::vector<std::byte> plain(3 * kFarPage, std::byte{5});
  ASSERT_TRUE(left.Write(0, plain).ok());
  const FarOptions far{.node = 0, .budget_bytes = 4 * kFarPage};
  auto medium = FarMedium::Reopen(far, *left.Keep(), 2 * kFarPage);
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_EQ((*medium)->size_bytes(), 2 * kFarPage);
  std::vector<std::byte> all(2 * kFarPage);
  ASSERT_TRUE((*medium)->Read(0, absl::MakeSpan(all)).ok());
  EXPECT_EQ(all, std::vector<std::byte>(2 * kFarPage, std::byte{5}));
  // What was in no use is gone, and nobody's when it comes again.
  ASSERT_TRUE(
      left.Read(2 * kFarPage, absl::MakeSpan(all).first(kFarPage)).ok());
  EXPECT_EQ(all.front(), std::byte{0});
  EXPECT_EQ(*(*medium)->Grow({2 * kFarPage, kFarPage, 2 * kFarPage}),
            2 * kFarPage);
  EXPECT_FALSE(FarMedium::Reopen({.node = 0, .budget_bytes = 8 * kFarPage},
                                 *left.Keep(), kFarPage)
                   .ok());
  EXPECT_FALSE(FarMedium::Reopen(far, *left.Keep(), 5 * kFarPage).ok());
  // It goes with its new owner.
  medium->reset();
  ASSERT_TRUE(left.Read(0, absl::MakeSpan(all)).ok());
  EXPECT_EQ(all, std::vector<std::byte>(2 * kFarPage));
}

TEST(FarMediumTest, OneThatIsNotSharedIsNotKept) {
  FarMedium medium("node0", *HostArena::Create({.growth_bytes = kFarPage}),
                   kFarPage);
  EXPECT_FALSE(medium.Keep().has_value());
}

}  // namespace
}  // namespace terrace
