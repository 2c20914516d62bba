// The program end to end over memory for a tenth of the state, a file that
// plays persistent memory for three tenths, and a disk: the same bits, and what
// the links carry. TERRACE_SIZES names the models, as "mini small"; without it
// the smallest is trained alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "examples/train_gpt/model_shape.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;

// What is under way as the second step begins and as the last one ends comes to
// a window at most, a sixth of what rests in memory. Over nine steps that is
// less than 2 % of what they carry.
constexpr int kSteps = 10;
constexpr double kMost = 0.02;  // that a link may be off by

struct Training {
  std::string size;
  std::string dtype;
  int64_t state_bytes = 0;
  int64_t dram_bytes = 0;
  int64_t pmem_bytes = 0;
  int64_t disk_bytes = 0;

  static Training Of(const std::string& size, const std::string& dtype) {
    const int64_t element = dtype == "fp32" ? 8 : 12;
    const int64_t state = element * ParameterCount(*PresetShape(size));
    // All that persistent memory has no room for, with headers.
    return {size, dtype, state, state / 10, 3 * state / 10, 3 * state / 4};
  }
};

std::vector<std::string> Sizes() {
  const char* const given = std::getenv("TERRACE_SIZES");
  std::istringstream words(given == nullptr ? "tiny" : given);
  std::vector<std::string> sizes;
  for (std::string size; words >> size;) sizes.push_back(size);
  return sizes;
}

class ThreeTiersTest : public testing::Test {
 protected:
  // Chunks are small beside 2 % of a budget. The disk has a pace, so that the
  // file is the faster of the two, as persistent memory is: all state in 15
  // seconds, or slower.
  std::vector<std::string> Arguments(const Training& training) const {
    const int64_t pace = std::max<int64_t>(20 << 20, training.state_bytes / 15);
    return {"--size",   training.size,
            "--dtype",  training.dtype,
            "--batch",  "1",
            "--seq",    "32",
            "--steps",  absl::StrCat(kSteps),
            "--tier",   absl::StrCat("dram=", training.dram_bytes),
            "--tier",   absl::StrCat(pmem_, "=", training.pmem_bytes),
            "--tier",   absl::StrCat(nvme_, "=", training.disk_bytes),
            "--pace",   absl::StrCat(pace, ",", pace),
            "--verify", "--json",
            json_};
  }
  nlohmann::json Train(const Training& training) {
    std::vector<std::string> arguments = Arguments(training);
    arguments.push_back("--unsafe-media");
    const ChildResult result = RunTrainGpt(arguments, {.longest_seconds = 900});
    EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
    EXPECT_THAT(result.output, HasSubstr("unsafe media: "));
    EXPECT_TRUE(memory_.empty());
    EXPECT_TRUE(disk_.empty());
    return ReadJson(json_);
  }
  void ExpectBudgetsHeld(const nlohmann::json& json, const Training& training) {
    ASSERT_EQ(json["tiers"].size(), 3u);
    const std::vector<std::string> names = {"dram", pmem_, nvme_};
    const std::vector<int64_t> most = {training.dram_bytes, training.pmem_bytes,
                                       training.disk_bytes};
    for (size_t i = 0; i < names.size(); ++i) {
      const nlohmann::json& tier = json["tiers"][i];
      EXPECT_EQ(tier["name"], names[i]);
      EXPECT_EQ(tier["budget_bytes"], most[i]);
      EXPECT_GT(tier["peak_bytes"], 0);
      EXPECT_LE(tier["peak_bytes"], most[i]);
    }
  }
  // From the second step on what rests in a tier is what its links carry, both
  // ways; what stays in memory has an empty place on the disk. What is under
  // way as a step ends is the next one's, so a step alone may be off by a
  // window's worth beside.
  void ExpectLinksCarryWhatRests(const nlohmann::json& json,
                                 const Training& training) {
    ASSERT_EQ(json["links"].size(), 4u);
    const auto window = json["window_bytes"].get<double>();
    const auto chunk = json["chunk_bytes"].get<double>() + 4096;
    const double residents = json["resident_bytes"];
    const double pmem = json["tiers"][1]["used_bytes"];
    const double disk =
        json["tiers"][2]["used_bytes"].get<double>() - residents;
    EXPECT_GT(residents, 0);
    EXPECT_GT(pmem, static_cast<double>(training.pmem_bytes) - chunk);
    for (int link = 0; link < 4; ++link) {
      const nlohmann::json& told = json["links"][link];
      EXPECT_GE(told["seconds_blocked"], 0.0) << told;
      const auto steps = told["step_bytes"].get<std::vector<double>>();
      ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
      const double rests = link < 2 ? pmem : disk;
      double carried = 0;
      for (int step = 1; step < kSteps; ++step) {
        EXPECT_NEAR(steps[step], rests, kMost * rests + window)
            << "step " << step + 1 << " of " << told;
        carried += steps[step] / (kSteps - 1);
      }
      EXPECT_NEAR(carried, rests, kMost * rests) << told;
      std::printf("%s %s, link %d: %.2f MB a step of %.2f (%.2f %% off)\n",
                  training.size.c_str(), training.dtype.c_str(), link,
                  1e-6 * carried, 1e-6 * rests, 100 * (carried / rests - 1));
    }
  }

  const TemporaryDirectory memory_, disk_, results_;
  const std::string pmem_ = "pmem:" + memory_.path();
  const std::string nvme_ = "nvme:" + disk_.path();
  const std::string json_ = results_.path() + "/run.json";
};

TEST_F(ThreeTiersTest, TheyTrainAsTheReferenceDoesAndCarryWhatTheyHold) {
  const ChildResult refused =
      RunTrainGpt(Arguments(Training::Of("tiny", "fp32")));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("tier '" + pmem_ + "="));
  if (absl::StrContains(refused.errors, "libpmem2-dev")) {
    GTEST_SKIP() << refused.errors;
  }
  EXPECT_THAT(refused.errors, HasSubstr("granularity PAGE"));
  for (const std::string& size : Sizes()) {
    for (const char* dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(absl::StrCat(size, " ", dtype));
      const Training training = Training::Of(size, dtype);
      const nlohmann::json json = Train(training);
      ASSERT_TRUE(json.is_object());
      EXPECT_EQ(json["verify"]["reference"], "identical");
      ExpectBudgetsHeld(json, training);
      ExpectLinksCarryWhatRests(json, training);
    }
  }
}

TEST_F(ThreeTiersTest, WithoutADiskTheRestIsInPersistentMemory) {
  const std::string tier = pmem_ + "=64MiB";
  const ChildResult run =
      RunTrainGpt({"--size", "tiny", "--batch", "1", "--seq", "32", "--steps",
                   "2", "--tier", "dram=8MiB", "--tier", tier, "--unsafe-media",
                   "--verify", "--json", json_});
  if (absl::StrContains(run.errors, "libpmem2-dev")) {
    GTEST_SKIP() << run.errors;
  }
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_THAT(run.output, HasSubstr("state and its headers on " + tier));
  EXPECT_THAT(run.output, HasSubstr("serial reference: identical"));
  const nlohmann::json json = ReadJson(json_);
  ASSERT_EQ(json["tiers"].size(), 2u);
  EXPECT_EQ(json["tiers"][1]["name"], pmem_);
  EXPECT_GT(json["tiers"][1]["peak_bytes"], 0);
  EXPECT_TRUE(memory_.empty());
}

}  // namespace
}  // namespace train_gpt
