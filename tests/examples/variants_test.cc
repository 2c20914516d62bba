// The program's variants, each at the smallest size, each against something
// that it must equal, exceed or stay below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "terrace/machine.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;
using Arguments = std::vector<std::string>;

Arguments Joined(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The report of a run that must succeed and leave its path empty.
nlohmann::json Report(const Arguments& more) {
  TemporaryDirectory folder;
  const std::string json = folder.path() + "/run.json";
  const ChildResult run = RunTrainGpt(Smallest(Joined(more, {"--json", json})));
  EXPECT_EQ(run.exit_code, 0) << run.errors << run.output;
  nlohmann::json report = ReadJson(json);
  EXPECT_TRUE(report.is_object());
  return report;
}

nlohmann::json OffloadedReport(const Arguments& more) {
  TemporaryDirectory path;
  nlohmann::json report = Report(
      Joined({"--memory-budget", "30%", "--nvme-path", path.path()}, more));
  EXPECT_TRUE(path.empty());
  return report;
}

std::vector<std::string> KeysOf(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

double SumOf(const nlohmann::json& list) {
  const auto numbers = list.get<std::vector<double>>();
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

const std::vector<std::string> kKeys = {
    "parameters",      "dtype",       "state_bytes",      "budget_bytes",
    "window_bytes",    "chunk_bytes", "arena_peak_bytes", "resident_bytes",
    "tiers",           "links",       "rss_peak_bytes",   "engine",
    "direct_io",       "isa",         "losses",           "step_seconds",
    "blocked_seconds", "bytes_read",  "bytes_written"};

TEST(ReportTest, HasTheKeysOfTheReadmeAndNoOthers) {
  const nlohmann::json report = OffloadedReport({"--steps", "3", "--verify"});
  std::vector<std::string> keys = kKeys;
  keys.push_back("verify");
  EXPECT_THAT(KeysOf(report), UnorderedElementsAreArray(keys));
  for (const nlohmann::json& tier : report["tiers"]) {
    EXPECT_THAT(KeysOf(tier),
                UnorderedElementsAreArray({"name", "kind", "budget_bytes",
                                           "used_bytes", "peak_bytes"}));
  }
  for (const nlohmann::json& link : report["links"]) {
    EXPECT_THAT(KeysOf(link),
                UnorderedElementsAreArray(
                    {"from", "to", "bytes", "step_bytes", "seconds_blocked"}));
  }
  EXPECT_THAT(KeysOf(report["blocked_seconds"]),
              UnorderedElementsAreArray({"read", "write", "space"}));
  EXPECT_THAT(KeysOf(report["verify"]),
              UnorderedElementsAreArray({"reference", "libtorch"}));
  EXPECT_THAT(KeysOf(report["verify"]["libtorch"]),
              UnorderedElementsAreArray({"max_loss_difference",
                                         "parameter_l2_difference",
                                         "max_parameter_difference"}));
  for (const char* list :
       {"losses", "step_seconds", "bytes_read", "bytes_written"}) {
    EXPECT_THAT(report[list], SizeIs(3)) << list;
  }
}

TEST(ReportTest, HasNumbersThatBelongTogether) {
  const nlohmann::json report = OffloadedReport({"--steps", "3"});
  const int64_t parameters = report["parameters"];
  EXPECT_EQ(report["state_bytes"], 8 * parameters);
  EXPECT_EQ(report["budget_bytes"],
            static_cast<int64_t>(0.3 * 8 * static_cast<double>(parameters)));
  EXPECT_LE(report["window_bytes"], report["budget_bytes"]);
  EXPECT_LE(report["arena_peak_bytes"], report["budget_bytes"]);
  EXPECT_GE(report["arena_peak_bytes"], report["window_bytes"]);
  EXPECT_LT(report["chunk_bytes"], report["window_bytes"]);
  // The process holds at least its parameters and gradients besides.
  EXPECT_GT(report["rss_peak_bytes"], report["arena_peak_bytes"]);
  EXPECT_TRUE(report["direct_io"].is_boolean());
  EXPECT_FALSE(report["isa"].get<std::string>().empty());
  double blocked = 0;
  for (const auto& cause : report["blocked_seconds"]) {
    EXPECT_GE(cause, 0.0);
    blocked += cause.get<double>();
  }
  EXPECT_LE(blocked, SumOf(report["step_seconds"]));
  EXPECT_GT(SumOf(report["bytes_written"]), 0);
}

TEST(ReportTest, OfSgdKnowsOfNoDisk) {
  const nlohmann::json report = Report({"--steps", "2", "--optimizer", "sgd"});
  EXPECT_THAT(KeysOf(report), UnorderedElementsAreArray(kKeys));
  for (const char* key : {"state_bytes", "budget_bytes", "window_bytes",
                          "chunk_bytes", "arena_peak_bytes"}) {
    EXPECT_EQ(report[key], 0) << key;
  }
  EXPECT_EQ(report["engine"], "none");
  EXPECT_EQ(report["direct_io"], false);
  EXPECT_THAT(report["blocked_seconds"], Each(0.0));
  EXPECT_EQ(SumOf(report["bytes_read"]) + SumOf(report["bytes_written"]), 0);
  EXPECT_THAT(report["losses"], SizeIs(2));
}

// Each variant that changes what is computed equals its own reference, and
// differs from the plain run.
TEST(VariantsTest, EachEqualsItsReferenceAndNotThePlainRun) {
  const Arguments base = {"--steps", "4"};
  const nlohmann::json plain = OffloadedReport(base);
  const std::vector<Arguments> variants = {
      {"--accumulate", "3"},
      {"--clip", "0.05"},
      {"--dtype", "bf16", "--io-engine", "threads", "--clip", "0"},
  };
  for (const Arguments& variant : variants) {
    SCOPED_TRACE(testing::PrintToString(variant));
    const nlohmann::json report =
        OffloadedReport(Joined(Joined(base, variant), {"--verify"}));
    EXPECT_EQ(report["verify"]["reference"], "identical");
    EXPECT_NE(report["losses"], plain["losses"]);
  }
}

// Those that do not change what is computed do not.
TEST(VariantsTest, EnginesPacesAndBudgetsTrainAlike) {
  const Arguments base = {"--steps", "3"};
  const nlohmann::json plain = OffloadedReport(base);
  const std::vector<Arguments> variants = {
      {"--io-engine", "threads"},
      {"--pace", "20MB,0"},
      {"--memory-budget", "200%"},
  };
  for (const Arguments& variant : variants) {
    SCOPED_TRACE(testing::PrintToString(variant));
    EXPECT_EQ(OffloadedReport(Joined(base, variant))["losses"],
              plain["losses"]);
  }
  EXPECT_EQ(
      OffloadedReport({"--steps", "1", "--io-engine", "threads"})["engine"],
      "threads");
}

TEST(VariantsTest, WhatFitsTheBudgetNeverTouchesTheDisk) {
  const nlohmann::json report =
      OffloadedReport({"--steps", "3", "--memory-budget", "200%"});
  EXPECT_EQ(SumOf(report["bytes_read"]) + SumOf(report["bytes_written"]), 0);
}

TEST(VariantsTest, AMachineProfileIsReadAndAStaleOneIsTold) {
  TemporaryDirectory folder, path;
  const std::string profile = folder.path() + "/machine.json";
  terrace::MachineProfile other;
  other.machine_id = "another machine's";
  ASSERT_TRUE(terrace::WriteProfile(other, profile).ok());
  const ChildResult run = RunTrainGpt(
      Smallest({"--steps", "1", "--memory-budget", "30%", "--nvme-path",
                path.path(), "--machine-profile", profile}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output,
              ContainsRegex("machine profile +stale .*another machine's"));
}

// Bytes a second of a paced disk bound the steps from below, and most of that
// time is spent waiting for them; without pacing the same steps are faster. Of
// the last two, one of several runs: another may be kept off the processor.
TEST(VariantsTest, APacedRunIsAsSlowAsItsDisk) {
  constexpr double kRate = 5e5;
  constexpr int kRuns = 6;
  const Arguments base = {"--steps", "4"};
  // Up to a window may be on its way when a step begins or ends.
  const auto least_seconds = [&](const nlohmann::json& report) {
    return (SumOf(report["bytes_read"]) -
            report["window_bytes"].get<double>()) /
           kRate;
  };
  double bound = 0;
  double blocked_share = 0;
  for (int run = 0; run < kRuns && blocked_share <= 0.8; ++run) {
    const nlohmann::json paced =
        OffloadedReport(Joined(base, {"--pace", "500KB,0"}));
    bound = least_seconds(paced);
    ASSERT_GT(bound, 0.8);
    EXPECT_GE(SumOf(paced["step_seconds"]), bound);
    double blocked = 0;
    for (const auto& cause : paced["blocked_seconds"]) {
      blocked += cause.get<double>();
    }
    blocked_share = blocked / bound;
  }
  EXPECT_GT(blocked_share, 0.8);
  double plain_seconds = SumOf(OffloadedReport(base)["step_seconds"]);
  for (int run = 1; run < kRuns && plain_seconds >= bound; ++run) {
    plain_seconds = SumOf(OffloadedReport(base)["step_seconds"]);
  }
  EXPECT_LT(plain_seconds, bound);
}

}  // namespace
}  // namespace train_gpt
