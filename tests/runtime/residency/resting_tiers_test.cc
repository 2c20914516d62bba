#include "runtime/motion/resting_tiers.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RestingTiersTest : public testing::Test {
 protected:
  void RunBackground(size_t path) {
    core_.machine.background[path].RunAll();
    core_.Hear();
  }

  // Full as they are.
  TestCore core_{{.path_bytes = 0, .most_path_bytes = 16 * kPage}};
  RestingTiers& tiers_ = core_.resting;
};

TEST_F(RestingTiersTest, EachHasItsNumberAmongItsKind) {
  EXPECT_EQ(tiers_.count(), 2);
  EXPECT_THAT(tiers_.ids(), ElementsAre(kDisk0, kDisk1));
  EXPECT_EQ(tiers_.at(kDisk1).id(), kDisk1);
  EXPECT_EQ(tiers_.IndexOf(kDisk1), 1);
  EXPECT_EQ(tiers_.name(kDisk0), "disk0/state");
}

TEST_F(RestingTiersTest, TheNextEventIsTheFirstOfAny) {
  EXPECT_EQ(tiers_.NextEvent(), absl::InfiniteFuture());
  ASSERT_TRUE(tiers_.at(kDisk1).Allocate(kPage, true).ok());  // it grows
  // It is looked at eight times in the second that it has.
  EXPECT_EQ(tiers_.NextEvent(),
            core_.machine.clock.Now() + absl::Milliseconds(125));
  RunBackground(1);
  EXPECT_EQ(tiers_.NextEvent(), absl::InfiniteFuture());
}

TEST_F(RestingTiersTest, RefusalsOfAllAreForgotten) {
  for (const TierId tier : {kDisk0, kDisk1}) {
    const auto path = static_cast<size_t>(tier.number);
    core_.machine.files[path]->grow_status =
        absl::ResourceExhaustedError("ENOSPC");
    ASSERT_TRUE(tiers_.at(tier).Allocate(kPage, false).ok());
    RunBackground(path);
    ASSERT_FALSE(tiers_.at(tier).Allocate(kPage, false).ok());
  }
  tiers_.ForgetRefusals();
  EXPECT_TRUE(tiers_.at(kDisk0).Allocate(kPage, false).ok());
  EXPECT_TRUE(tiers_.at(kDisk1).Allocate(kPage, false).ok());
}

TEST_F(RestingTiersTest, ARemovalIsOfAllAndItsFirstErrorCounts) {
  core_.machine.files[0]->remove_status = absl::UnavailableError("EBUSY");
  core_.machine.files[1]->remove_status = absl::InternalError("later");
  EXPECT_THAT(tiers_.unremoved(), IsEmpty());
  tiers_.BeginRemove(/*quiet=*/true);
  EXPECT_THAT(tiers_.unremoved(), ElementsAre("disk0/state", "disk1/state"));
  RunBackground(0);
  EXPECT_THAT(tiers_.unremoved(), ElementsAre("disk1/state"));
  RunBackground(1);
  EXPECT_THAT(tiers_.unremoved(), IsEmpty());
  EXPECT_EQ(tiers_.removal_status(), absl::UnavailableError("EBUSY"));
}

// A copy into it would go on in memory that is gone.
TEST(MappedRestingTiersTest, WhatIsMappedGoesOnceNothingMoves) {
  TestCore core({.far = 1, .paths = 1});
  core.resting.BeginRemove(/*quiet=*/false);
  EXPECT_EQ(core.machine.background[0].RunAll(), 1);
  EXPECT_EQ(core.machine.far_background.RunAll(), 0);
  core.resting.BeginRemove(/*quiet=*/false);
  EXPECT_EQ(core.machine.background[0].RunAll(), 0);
  core.resting.BeginRemove(/*quiet=*/true);
  EXPECT_EQ(core.machine.background[0].RunAll(), 0);
  EXPECT_EQ(core.machine.far_background.RunAll(), 1);
  core.resting.BeginRemove(/*quiet=*/true);
  EXPECT_EQ(core.machine.far_background.RunAll(), 0);
  core.Hear();
  EXPECT_THAT(core.resting.unremoved(), IsEmpty());
}

TEST(RestingTiersDeathTest, TheirNumbersAreTheirPlaces) {
  TestMachine machine({.paths = 1});
  DiskTierParts second;
  second.id = kDisk1;
  second.file = machine.MakeFile(0);
  second.background = &machine.background[0];
  second.clock = &machine.clock;
  std::vector<std::unique_ptr<DiskTier>> tiers;
  tiers.push_back(std::make_unique<DiskTier>(std::move(second)));
  EXPECT_DEATH(RestingTiers resting({}, std::move(tiers)), "internal error");
}

}  // namespace
}  // namespace terrace
