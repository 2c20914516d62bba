#include "machine/profile/tuning.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/profile/profile.h"
#include "machine/pseudo_files.h"
#include "machine/storage.h"
#include "terrace/runtime.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

PathProfile SomePath(const std::string& path) {
  PathProfile profile;
  profile.path = path;
  profile.engine = "io_uring";
  profile.rates = {{"read", kMiB, 8 * kMiB, 3e9, 1, 1},
                   {"read", 4 * kMiB, 8 * kMiB, 2.9e9, 1, 1},
                   {"read", kMiB, kMiB, 1e9, 1, 1},
                   {"write", kMiB, 8 * kMiB, 2e9, 1, 1},
                   {"write", 4 * kMiB, 8 * kMiB, 1.9e9, 1, 1},
                   {"mixed", kMiB, 8 * kMiB, 9e9, 1, 1}};
  for (const DriveReport& drive : IdentifyPath(PseudoFiles(""), path).drives) {
    profile.drives.push_back(IdentityOf(drive));
  }
  return profile;
}

// That holds for this machine.
MachineProfile SomeProfile(const std::vector<std::string>& paths) {
  const PseudoFiles files("");
  MachineProfile profile;
  profile.machine_id = files.Text("/etc/machine-id");
  profile.kernel = files.Text("/proc/sys/kernel/osrelease");
  profile.processor = files.Field("/proc/cpuinfo", "model name");
  for (const std::string& path : paths) profile.paths.push_back(SomePath(path));
  return profile;
}

TEST(TuningTest, TheSlowerDirectionMakesTheWindow) {
  const PathTuning tuning = TuningOf(SomePath("/"));
  EXPECT_EQ(tuning.read_bytes_per_second, 3e9);
  EXPECT_EQ(tuning.write_bytes_per_second, 2e9);
  // 2e9 * 1.65 ms = 3.3e6 bytes: 50 times 64 KiB.
  EXPECT_EQ(tuning.in_flight_bytes, 50 * 64 * 1024);
  EXPECT_EQ(tuning.piece_bytes, 4 * kMiB);
}

TEST(TuningTest, WindowsStayWithinReason) {
  PathProfile slow = SomePath("/");
  PathProfile fast = slow;
  for (RateProfile& rate : slow.rates) rate.bytes_per_second /= 1e4;
  for (RateProfile& rate : fast.rates) rate.bytes_per_second *= 1e12;
  EXPECT_EQ(TuningOf(slow).in_flight_bytes, 512 << 10);
  EXPECT_EQ(TuningOf(fast).in_flight_bytes, 32 * kMiB);
}

TEST(TuningTest, PiecesThatAreSlowInOneDirectionAreNotTaken) {
  PathProfile profile = SomePath("/");
  profile.rates[4].bytes_per_second = 1.7e9;  // of 2e9: 4 MiB writes
  EXPECT_EQ(TuningOf(profile).piece_bytes, kMiB);
  profile.rates.pop_back();  // mixed
  profile.rates.pop_back();
  profile.rates.pop_back();  // writes
  EXPECT_EQ(TuningOf(profile).piece_bytes, 0);
  EXPECT_EQ(TuningOf(profile).in_flight_bytes, 0);
}

class ReadTuningTest : public testing::Test {
 protected:
  std::string Write(const MachineProfile& profile) {
    const std::string file = directory_.path() + "/machine.json";
    EXPECT_TRUE(WriteProfile(profile, file).ok());
    return file;
  }
  TemporaryDirectory directory_;
  const std::string path_ = directory_.MakeDirectory("disk");
};

TEST_F(ReadTuningTest, AProfileThatHoldsIsTaken) {
  const auto tuning = ReadTuning(Write(SomeProfile({path_})), {path_});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_THAT(tuning->stale, IsEmpty());
  ASSERT_EQ(tuning->paths.size(), 1u);
  EXPECT_EQ(tuning->paths[0].read_bytes_per_second, 3e9);
}

TEST_F(ReadTuningTest, AnotherMachineMakesAllOfItStale) {
  MachineProfile profile = SomeProfile({path_});
  profile.kernel = "1.0";
  const auto tuning = ReadTuning(Write(profile), {path_});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_THAT(tuning->stale, ElementsAre(HasSubstr("kernel was '1.0'")));
  ASSERT_EQ(tuning->paths.size(), 1u);
  EXPECT_EQ(tuning->paths[0].read_bytes_per_second, 0);
  EXPECT_EQ(tuning->paths[0].in_flight_bytes, 0);
}

TEST_F(ReadTuningTest, AnotherDriveMakesThatPathStale) {
  const std::string other = directory_.MakeDirectory("other");
  const std::string unknown = directory_.MakeDirectory("unknown");
  MachineProfile profile = SomeProfile({path_, other});
  profile.paths[1].drives = {"a drive that is gone"};
  const auto tuning = ReadTuning(Write(profile), {other, path_, unknown});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_THAT(tuning->stale,
              ElementsAre(AllOf(HasSubstr(other), HasSubstr("is gone")),
                          HasSubstr("unknown' was not measured")));
  ASSERT_EQ(tuning->paths.size(), 3u);
  EXPECT_EQ(tuning->paths[0].read_bytes_per_second, 0);
  EXPECT_EQ(tuning->paths[1].read_bytes_per_second, 3e9);
  EXPECT_EQ(tuning->paths[2].read_bytes_per_second, 0);
}

TEST_F(ReadTuningTest, EachTierHasItsRatesOrWhyNot) {
  const TierSpec far = {.kind = TierKind::kFar, .place = "node2"};
  const TierSpec pmem = {TierKind::kPmem, "/mnt/pmem0", kMiB};
  MachineProfile profile = SomeProfile({path_});
  profile.tiers = {{"pmem:/mnt/pmem0", 5e9, 4e9}};
  auto tuning = ReadTuning(Write(profile), {path_}, {far, pmem});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_THAT(tuning->stale, ElementsAre("tier 'far:node2' was not measured"));
  ASSERT_EQ(tuning->tiers.size(), 2u);
  EXPECT_EQ(tuning->tiers[0].read_bytes_per_second, 0);
  EXPECT_EQ(tuning->tiers[1].read_bytes_per_second, 5e9);
  EXPECT_EQ(tuning->tiers[1].write_bytes_per_second, 4e9);
  EXPECT_EQ(tuning->paths[0].read_bytes_per_second, 3e9);
  profile.kernel = "1.0";
  tuning = ReadTuning(Write(profile), {path_}, {pmem});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  ASSERT_EQ(tuning->tiers.size(), 1u);
  EXPECT_EQ(tuning->tiers[0].read_bytes_per_second, 0);
}

class ProfiledRuntimeTest : public ReadTuningTest {
 protected:
  Options SomeOptions() {
    Options options;
    options.host_budget_bytes = 1 << 20;
    options.paths = {path_};
    options.threads = 1;
    return options;
  }
};

TEST_F(ProfiledRuntimeTest, SaysWhetherItsProfileHolds) {
  Options options = SomeOptions();
  for (const bool is_stale : {false, true}) {
    MachineProfile profile = SomeProfile({path_});
    if (is_stale) profile.machine_id = "another";
    options.machine_profile = Write(profile);
    const auto runtime = Runtime::Create(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_THAT(
        (*runtime)->GetStats().machine_profile,
        is_stale ? HasSubstr("the machine was 'another'") : HasSubstr("holds"));
  }
  options.machine_profile.clear();
  const auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->GetStats().machine_profile, "");
}

// Bytes that went down to each tier of this runtime while more tensors were
// written than memory holds.
std::map<std::string, int64_t> WriteMuch(Runtime& runtime) {
  for (int i = 0; i < 24; ++i) {
    const auto id =
        runtime.Register({.name = std::to_string(i), .size_bytes = kMiB});
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) break;
    auto pin = runtime.Acquire(*id, Access::kOverwrite,
                               absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(pin.ok()) << pin.status();
    if (!pin.ok()) break;
    pin->Release();
  }
  std::map<std::string, int64_t> bytes;
  for (const LinkStats& link : runtime.GetStats().links) {
    if (link.from == "dram") bytes[link.to] += link.bytes;
  }
  return bytes;
}

// A tier that was measured to be a billion times slower gets nothing.
TEST_F(ProfiledRuntimeTest, MappedTiersBeginWithTheirRates) {
  const std::string paths[] = {directory_.MakeDirectory("a"),
                               directory_.MakeDirectory("b")};
  for (const int slow : {0, 1}) {
    MachineProfile profile = SomeProfile({});
    Options options;
    options.threads = 1;
    options.unsafe_media = true;
    options.tiers = {{.kind = TierKind::kDram, .budget_bytes = 8 * kMiB}};
    for (int i = 0; i < 2; ++i) {
      const double rate = i == slow ? 1e3 : 1e12;
      options.tiers.push_back({TierKind::kPmem, paths[i], 64 * kMiB});
      profile.tiers.push_back({"pmem:" + paths[i], rate, rate});
    }
    options.machine_profile = Write(profile);
    const auto runtime = Runtime::Create(options);
    if (absl::IsUnimplemented(runtime.status())) {
      GTEST_SKIP() << runtime.status();
    }
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_EQ((*runtime)->GetStats().machine_profile, "holds");
    std::map<std::string, int64_t> bytes = WriteMuch(**runtime);
    EXPECT_EQ(bytes["pmem:" + paths[slow]], 0) << slow;
    EXPECT_GT(bytes["pmem:" + paths[1 - slow]], 8 * kMiB) << slow;
  }
}

TEST_F(ProfiledRuntimeTest, AProfileThatCannotBeReadIsAnError) {
  Options options = SomeOptions();
  options.machine_profile = directory_.path() + "/none.json";
  EXPECT_TRUE(absl::IsNotFound(Runtime::Create(options).status()));
  options.machine_profile = directory_.Write("broken.json", "{");
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Create(options).status()));
}

TEST_F(ProfiledRuntimeTest, WeightsOutOfRangeAreRefused) {
  for (const IoWeights& weights :
       {IoWeights{0, 1, 1}, IoWeights{4, -1, 1}, IoWeights{4, 1, 1001}}) {
    Options options = SomeOptions();
    options.io_weights = weights;
    EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Create(options).status()));
  }
  Options options = SomeOptions();
  options.io_weights = {1000, 1, 1};
  EXPECT_TRUE(Runtime::Create(options).ok());
}

}  // namespace
}  // namespace terrace
