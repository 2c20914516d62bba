#include "machine/profile/profile.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MachineProfile SomeProfile() {
  MachineProfile profile;
  profile.machine_id = "abc";
  profile.kernel = "6.1";
  profile.processor = "A Processor";
  profile.measured_at = 1700000000;
  profile.threads = 3;
  profile.copy_bytes_per_second = 1.5e10;
  profile.instruction_set = "AVX2";
  profile.adam_elements_per_second = 2e9;
  profile.paths = {{.path = "/mnt/a",
                    .drives = {"nvme0n1 Fast S1"},
                    .engine = "io_uring",
                    .direct_io = true,
                    .rates = {{"read", 1 << 20, 8 << 20, 3e9, 2500, 3000.5}}}};
  profile.tiers = {{.tier = "far:node2",
                    .read_bytes_per_second = 9e9,
                    .write_bytes_per_second = 8e9}};
  return profile;
}

// A machine for which that profile holds.
MachineReport SomeMachine() {
  MachineReport report;
  report.machine_id = "abc";
  report.kernel = "6.1";
  report.processor.model = "A Processor";
  PathReport path;
  path.path = "/mnt/a";
  path.drives = {{.name = "nvme0n1", .model = "Fast", .serial = "S1"}};
  report.paths = {path};
  return report;
}

class ProfileTest : public testing::Test {
 protected:
  absl::StatusOr<MachineProfile> Read(const std::string& text) {
    return ReadProfile(directory_.Write("profile.json", text));
  }
  TemporaryDirectory directory_;
};

TEST_F(ProfileTest, WhatIsWrittenIsRead) {
  const std::string file = directory_.path() + "/a/b/machine.json";
  ASSERT_TRUE(WriteProfile(SomeProfile(), file).ok());
  ASSERT_TRUE(WriteProfile(SomeProfile(), file).ok());  // in its place
  const auto read = ReadProfile(file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->machine_id, "abc");
  EXPECT_EQ(read->measured_at, 1700000000);
  EXPECT_EQ(read->threads, 3);
  EXPECT_EQ(read->copy_bytes_per_second, 1.5e10);
  EXPECT_EQ(read->adam_elements_per_second, 2e9);
  ASSERT_EQ(read->paths.size(), 1u);
  EXPECT_THAT(read->paths[0].drives, ElementsAre("nvme0n1 Fast S1"));
  EXPECT_TRUE(read->paths[0].direct_io);
  ASSERT_EQ(read->paths[0].rates.size(), 1u);
  EXPECT_EQ(read->paths[0].rates[0].direction, "read");
  EXPECT_EQ(read->paths[0].rates[0].window_bytes, 8 << 20);
  EXPECT_EQ(read->paths[0].rates[0].latency_p99_us, 3000.5);
  ASSERT_EQ(read->tiers.size(), 1u);
  EXPECT_EQ(read->tiers[0].tier, "far:node2");
  EXPECT_EQ(read->tiers[0].read_bytes_per_second, 9e9);
  EXPECT_EQ(read->tiers[0].write_bytes_per_second, 8e9);
  EXPECT_EQ(ToJson(*read), ToJson(SomeProfile()));
  EXPECT_THAT(directory_.Entries(), ElementsAre("a"));
}

TEST_F(ProfileTest, EachMissingOrWrongKeyIsNamed) {
  const json whole = json::parse(ToJson(SomeProfile()));
  const std::vector<json::json_pointer> objects = {
      json::json_pointer(""), json::json_pointer("/paths/0"),
      json::json_pointer("/paths/0/rates/0"), json::json_pointer("/tiers/0")};
  int keys = 0;
  for (const json::json_pointer& object : objects) {
    for (const auto& [key, value] : whole[object].items()) {
      ++keys;
      json missing = whole;
      missing[object].erase(key);
      json wrong = whole;
      wrong[object][key] = json::object();
      // Profiles had no tiers once.
      const bool is_optional = key == "tiers";
      if (is_optional) {
        const auto read = Read(missing.dump());
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_THAT(read->tiers, IsEmpty());
      }
      for (const json& bad : {is_optional ? wrong : missing, wrong}) {
        const absl::Status status = Read(bad.dump()).status();
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << key << status;
        EXPECT_THAT(status.ToString(), HasSubstr(key));
        EXPECT_THAT(status.ToString(), HasSubstr("/profile.json'"));
      }
    }
  }
  EXPECT_EQ(keys, 11 + 5 + 6 + 3);
}

TEST_F(ProfileTest, WhatIsNoProfileIsRefused) {
  json negative = json::parse(ToJson(SomeProfile()));
  negative["copy_bytes_per_second"] = -1;
  json later = json::parse(ToJson(SomeProfile()));
  later["format"] = 2;
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"),
        negative.dump(), later.dump()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Read(text).status())) << text;
  }
  EXPECT_TRUE(
      absl::IsNotFound(ReadProfile(directory_.path() + "/none.json").status()));
}

TEST_F(ProfileTest, AWriteThatFailsLeavesNothing) {
  const std::string file = directory_.Write("file", "x");
  EXPECT_FALSE(WriteProfile(SomeProfile(), file + "/machine.json").ok());
  const std::string folder = directory_.MakeDirectory("folder");
  EXPECT_FALSE(WriteProfile(SomeProfile(), folder).ok());
  EXPECT_THAT(directory_.Entries(), ElementsAre("file", "folder"));
}

TEST(FindStaleTest, AProfileHoldsForItsMachine) {
  EXPECT_THAT(FindStale(SomeProfile(), SomeMachine()), IsEmpty());
}

TEST(FindStaleTest, WhateverChangedIsNamed) {
  MachineReport report = SomeMachine();
  report.machine_id = "def";
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre("the machine was 'abc' and is 'def'"));
  report = SomeMachine();
  report.kernel = "6.2";
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre(HasSubstr("kernel")));
  report = SomeMachine();
  report.processor.model = "Another";
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre(HasSubstr("processor")));
  report = SomeMachine();
  report.paths[0].drives[0].serial = "S2";
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre("the drive behind '/mnt/a' was 'nvme0n1 Fast S1' "
                          "and is 'nvme0n1 Fast S2'"));
  report.paths[0].path = "/mnt/b";
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre("path '/mnt/b' was not measured"));
  report.paths.clear();
  EXPECT_THAT(FindStale(SomeProfile(), report), IsEmpty());
}

TEST(FindStaleTest, ATierThatIsNamedMustHaveBeenMeasured) {
  MachineReport report = SomeMachine();
  TierReport& tier = report.tiers.emplace_back();
  tier.tier = {.kind = TierKind::kFar, .place = "node1"};
  EXPECT_THAT(FindStale(SomeProfile(), report), IsEmpty());  // only listed
  tier.named = true;
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre("tier 'far:node1' was not measured"));
  tier.tier.place = "node2";
  EXPECT_THAT(FindStale(SomeProfile(), report), IsEmpty());
  tier.status = absl::UnavailableError("it is gone");
  EXPECT_THAT(FindStale(SomeProfile(), report),
              ElementsAre("tier 'far:node2' cannot be had: it is gone"));
  tier.tier = {.kind = TierKind::kDram, .budget_bytes = 1};
  EXPECT_THAT(FindStale(SomeProfile(), report), IsEmpty());
}

TEST(MeasureMachineTest, MeasuresEachPathAndLeavesNothing) {
  const TemporaryDirectory directory;
  const auto profile = MeasureMachine({.paths = {directory.path()},
                                       .file_bytes = 32 << 20,
                                       .per_rate = absl::Milliseconds(5)});
  if (absl::IsResourceExhausted(profile.status())) {
    GTEST_SKIP() << profile.status();
  }
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GT(profile->copy_bytes_per_second, 0);
  EXPECT_GT(profile->adam_elements_per_second, 0);
  EXPECT_EQ(profile->instruction_set, InstructionSetName());
  ASSERT_EQ(profile->paths.size(), 1u);
  EXPECT_EQ(profile->paths[0].rates.size(), 11u);
  for (const RateProfile& rate : profile->paths[0].rates) {
    EXPECT_GT(rate.bytes_per_second, 0) << rate.direction;
    EXPECT_GT(rate.latency_p50_us, 0) << rate.direction;
  }
  EXPECT_TRUE(directory.empty());
  const MachineReport report = ProbeMachine({directory.path()});
  EXPECT_THAT(FindStale(*profile, report), IsEmpty());
}

TEST(MeasureMachineTest, WhatCannotBeMeasuredIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.path();
  EXPECT_TRUE(absl::IsInvalidArgument(
      MeasureMachine({.paths = {path, path}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MeasureMachine({.paths = {path}, .file_bytes = 1 << 20}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      MeasureMachine({.paths = {path}, .per_rate = absl::ZeroDuration()})
          .status()));
  const absl::Status missing =
      MeasureMachine({.paths = {path + "/none"}}).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
}

TEST(MeasureMachineTest, TooLittleSpaceIsSaid) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) GTEST_SKIP() << "no mount allowed";
  const absl::Status status =
      MeasureMachine({.paths = {directory.path()}}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(directory.path()));
}

}  // namespace
}  // namespace terrace
