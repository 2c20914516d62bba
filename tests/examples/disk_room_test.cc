// disk_room.h, offload_plan.h and state_path.h: the room on disk that a run
// needs, checkpoints counted, and what there is.
#include "examples/train_gpt/disk_room.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/state_path.h"
#include "examples/train_gpt/state_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/machine.h"
#include "tests/support/loop_device.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::LoopDevice;
using ::terrace::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DiskRoomTest : public testing::Test {
 protected:
  OffloadPlan PlanOf(std::vector<std::string> arguments) {
    for (const char* more : {"--memory-budget", "50%", "--nvme-path"}) {
      arguments.emplace_back(more);
    }
    arguments.push_back(path_.path());
    const auto flags = ParseFlags(arguments);
    EXPECT_TRUE(flags.ok()) << flags.status();
    const auto plan = PlanOffload(*flags);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }
  // A run that needs these shares of what is free now, for its state and for
  // its checkpoints.
  absl::Status Check(double state, double saves, const std::string& save) {
    const auto free =
        static_cast<double>(*terrace::FreeDiskBytes(path_.path()));
    OffloadPlan plan = PlanOf({});
    plan.plan.disk_bytes = static_cast<int64_t>(free * state);
    plan.save = save;
    plan.save_bytes = static_cast<int64_t>(free * saves);
    return CheckDisk(plan);
  }
  static std::string Message(const absl::Status& status) {
    return std::string(status.message());
  }

  TemporaryDirectory path_, save_;
};

TEST_F(DiskRoomTest, ThePlanSaysWhatEachPartOfTheDiskIsFor) {
  const OffloadPlan plain = PlanOf({"--size", "tiny"});
  EXPECT_THAT(PlanText(plain), Not(HasSubstr("--verify")));
  OffloadPlan plan = PlanOf({"--size", "tiny", "--verify"});
  EXPECT_GT(plan.verify_bytes, 0);
  plan.plan.state_bytes = 229 << 20;
  plan.plan.disk_bytes = 230 << 20;
  plan.verify_bytes = 115 << 20;
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("optimizer state: 229.0 MiB, "));
  EXPECT_THAT(text,
              HasSubstr("on disk: 230.0 MiB for the state and its headers "
                        "on 1 paths, 115.0 MiB for --verify's copy of the "
                        "parameters\n"));
}

TEST_F(DiskRoomTest, WithoutCheckpointsTheyNeedNone) {
  EXPECT_EQ(PlanOf({}).save_bytes, 0);
  EXPECT_TRUE(Check(0.6, 0, "").ok());
}

TEST_F(DiskRoomTest, ACheckpointIsParametersAndState) {
  const OffloadPlan fp32 = PlanOf({"--save", save_.path()});
  EXPECT_EQ(fp32.save, save_.path());
  const int64_t count = fp32.plan.parameters;
  EXPECT_GE(fp32.save_bytes, 12 * count);
  EXPECT_LE(fp32.save_bytes, 13 * count);
  const OffloadPlan bf16 = PlanOf({"--save", save_.path(), "--dtype", "bf16"});
  EXPECT_GE(bf16.save_bytes, 14 * count);
  EXPECT_LE(bf16.save_bytes, 15 * count);
}

TEST_F(DiskRoomTest, TheNextOneIsWrittenBesideTheLast) {
  const std::vector<std::string> once = {"--save", save_.path(), "--steps",
                                         "10"};
  const int64_t one = PlanOf(once).save_bytes;
  std::vector<std::string> often = once;
  often.insert(often.end(), {"--save-every", "5"});
  EXPECT_EQ(PlanOf(often).save_bytes, 2 * one);
  often.back() = "10";
  EXPECT_EQ(PlanOf(often).save_bytes, one);
  often.back() = "5";
  // The one that it resumes from has its room already.
  often.insert(often.end(), {"--resume", save_.path() + "/."});
  EXPECT_EQ(PlanOf(often).save_bytes, one);
}

TEST_F(DiskRoomTest, OneFileSystemMustHaveRoomForBoth) {
  EXPECT_TRUE(Check(0.6, 0.01, save_.path()).ok());
  EXPECT_TRUE(Check(0.01, 0.6, save_.path()).ok());
  // Also if others give back half as much meanwhile.
  const absl::Status both = Check(0.8, 0.8, save_.path());
  EXPECT_TRUE(absl::IsResourceExhausted(both)) << both;
  EXPECT_THAT(
      Message(both),
      AllOf(HasSubstr("not enough room"), HasSubstr(path_.path()),
            HasSubstr(save_.path()), HasSubstr("the state and --save need")));
}

TEST_F(DiskRoomTest, ADirectoryToBeMadeTakesRoomWhereItWillBe) {
  for (const char* name : {"/new", "/new/"}) {
    const absl::Status status = Check(0.01, 1.5, save_.path() + name);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("/new"));
  }
  EXPECT_TRUE(save_.empty());
  // What cannot be made is not a matter of room.
  EXPECT_TRUE(Check(0.01, 1.5, save_.path() + "/none/new").ok());
}

TEST_F(DiskRoomTest, AnotherFileSystemHasItsOwnRoom) {
  TemporaryDirectory small;
  if (!small.MountTmpfs("size=64k")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  EXPECT_TRUE(Check(0.6, 1e-12, small.path()).ok());
  const absl::Status status = Check(0.01, 0.6, small.path());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("--save: not enough room: " + small.path()),
                    HasSubstr("--save needs"), Not(HasSubstr(path_.path()))));
}

// The state on disks as --tier names them.
class TierRoomTest : public testing::Test {
 protected:
  static constexpr int64_t kMiB = 1 << 20;

  void SetUp() override {
    if (!small_.MountTmpfs("size=2m") || !large_.MountTmpfs("size=32m")) {
      GTEST_SKIP() << "mounting is not allowed here";
    }
  }
  static absl::Status Check(const std::vector<std::string>& tiers,
                            int64_t state_bytes, const std::string& save = "",
                            int64_t save_bytes = 0) {
    OffloadPlan plan;
    for (const std::string& text : tiers) {
      plan.runtime.tiers.push_back(*terrace::ParseTier(text));
      const terrace::TierSpec& tier = plan.runtime.tiers.back();
      if (tier.kind == terrace::TierKind::kDisk) {
        plan.paths.push_back(tier.place);
      }
    }
    plan.plan.disk_bytes = state_bytes;
    plan.save = save;
    plan.save_bytes = save_bytes;
    return CheckDisk(plan);
  }
  static std::string Disk(const TemporaryDirectory& path,
                          const std::string& budget = "") {
    return "nvme:" + path.path() + budget;
  }
  static void ExpectNoRoom(const absl::Status& status,
                           const std::string& free) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--tier: not enough room: "), HasSubstr(free)));
  }

  TemporaryDirectory small_, large_;
};

TEST_F(TierRoomTest, DisksNeedNoRoomForWhatRestsInMappedTiers) {
  const std::string disk = Disk(large_, "=4MiB");
  EXPECT_TRUE(Check({"far:node1=6MiB", disk}, 10 * kMiB).ok());
  EXPECT_TRUE(
      Check({"far:node1=3MiB", "pmem:/there=3MiB", disk}, 10 * kMiB).ok());
  EXPECT_TRUE(Check({"pmem:/there", disk}, 100 * kMiB).ok());
  const absl::Status status = Check({"far:node1=5MiB", disk}, 10 * kMiB);
  ExpectNoRoom(status, "the state needs 5242880 bytes");
}

TEST_F(TierRoomTest, ASmallDiskBesideALargeOneTakesWhatItHas) {
  EXPECT_TRUE(Check({Disk(small_), Disk(large_)}, 20 * kMiB).ok());
  EXPECT_TRUE(Check({Disk(large_), Disk(small_)}, 33 * kMiB).ok());
  ExpectNoRoom(Check({Disk(small_), Disk(large_)}, 35 * kMiB),
               large_.path() + " has 33554432 bytes (32.0 MiB) free");
}

TEST_F(TierRoomTest, ABudgetIsWhatADiskTakesAtMost) {
  const std::string one = Disk(large_, "=1MiB");
  EXPECT_TRUE(Check({one}, kMiB).ok());
  ExpectNoRoom(Check({one}, kMiB + 1), large_.path() + " (budget 1.0 MiB) has");
  EXPECT_TRUE(Check({one, Disk(small_)}, 3 * kMiB).ok());
  ExpectNoRoom(Check({one, Disk(small_)}, 3 * kMiB + 1), small_.path());
  // Whole blocks of it.
  EXPECT_FALSE(Check({Disk(large_, "=1052671")}, kMiB + 4095).ok());
}

TEST_F(TierRoomTest, TwoPathsOfOneDiskShareIt) {
  const std::string inner = large_.MakeDirectory("inner");
  const std::vector<std::string> both = {Disk(large_, "=20MiB"),
                                         "nvme:" + inner};
  EXPECT_TRUE(Check(both, 31 * kMiB).ok());
  EXPECT_FALSE(Check(both, 33 * kMiB).ok());
  const std::vector<std::string> limited = {Disk(large_, "=20MiB"),
                                            "nvme:" + inner + "=5MiB"};
  EXPECT_TRUE(Check(limited, 25 * kMiB).ok());
  EXPECT_FALSE(Check(limited, 26 * kMiB).ok());
}

TEST_F(TierRoomTest, WhatAFileHasIsTakenAgain) {
  const std::string file =
      small_.Write("given", std::string(kMiB + kMiB / 2, 'x'));
  EXPECT_TRUE(Check({"nvme:" + file}, kMiB + kMiB / 4).ok());
  EXPECT_FALSE(Check({"nvme:" + file}, 2 * kMiB + kMiB / 4).ok());
  EXPECT_FALSE(Check({"nvme:" + file + "=1MiB"}, kMiB + kMiB / 4).ok());
}

TEST_F(TierRoomTest, ABudgetLeavesRoomForACheckpoint) {
  const std::string save = small_.path() + "/save";
  ExpectNoRoom(Check({Disk(small_), Disk(large_)}, 4 * kMiB, save, kMiB),
               "the state and --save need");
  const std::vector<std::string> limited = {Disk(small_, "=1MiB"),
                                            Disk(large_)};
  EXPECT_TRUE(Check(limited, 4 * kMiB, save, kMiB).ok());
  EXPECT_FALSE(Check(limited, 4 * kMiB, save, kMiB + 1).ok());
}

TEST_F(TierRoomTest, ErrorsNameTheFlagThatWasGiven) {
  const absl::Status none = Check({Disk(small_) + "/none"}, kMiB);
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("--tier: path"), Not(HasSubstr("--nvme-path"))));
  const absl::Status twice =
      Check({Disk(small_), "nvme:" + small_.path() + "/."}, kMiB);
  EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
  EXPECT_THAT(std::string(twice.message()), HasSubstr("--tier: "));
  const auto flags = ParseFlags(
      {"--tier", "dram=4KiB", "--tier", Disk(small_), "--size", "tiny"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const absl::Status budget = PlanOffload(*flags).status();
  EXPECT_THAT(std::string(budget.message()),
              AllOf(HasSubstr("--tier: "), HasSubstr("minimum")));
  const absl::Status sgd = ParseFlags({"--tier", "dram=8MiB", "--tier",
                                       Disk(small_), "--optimizer", "sgd"})
                               .status();
  EXPECT_THAT(std::string(sgd.message()), HasSubstr("--tier is for adamw"));
}

TEST(StatePathTest, AFileIsWhereItIsWhateverItIsCalled) {
  const TemporaryDirectory there, here;
  const std::string file = there.Write("state", std::string(1 << 20, 'x'));
  const std::string link = here.path() + "/link";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  const auto direct = InspectStatePath(file);
  const auto linked = InspectStatePath(link);
  ASSERT_TRUE(direct.ok() && linked.ok()) << direct.status();
  EXPECT_EQ(direct->identity, linked->identity);
  EXPECT_EQ(linked->directory,
            std::filesystem::canonical(there.path()).string());
  // A run that goes on there needs no room for what is there.
  EXPECT_GE(linked->used_bytes, 1 << 20);
  EXPECT_LT(linked->used_bytes, 2 << 20);
  EXPECT_EQ(ScratchDirectory({link}), linked->directory);
}

TEST(StatePathTest, ADeviceHasRoomOfItsOwn) {
  const LoopDevice device(8 << 20);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const auto state = InspectStatePath(device.path());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(state->is_device());
  EXPECT_EQ(state->free_bytes, 6 << 20);  // but for its first and last MiB
  const TemporaryDirectory other;
  EXPECT_EQ(ScratchDirectory({device.path()}), ".");
  EXPECT_EQ(ScratchDirectory({device.path(), other.path()}), other.path());
}

}  // namespace
}  // namespace train_gpt
