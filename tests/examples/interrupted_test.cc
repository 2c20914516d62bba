// Runs that are killed, interrupted or not alone: the next start on the same
// path is not disturbed, and nothing stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Arguments = std::vector<std::string>;

Arguments Offloaded(const std::string& path, const Arguments& more) {
  Arguments arguments =
      Smallest({"--memory-budget", "40%", "--nvme-path", path});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A disk so slow that nearly all of a run is inside of optimizer steps: half a
// megabyte each way takes half a second.
Arguments Slow(const std::string& path) {
  return Offloaded(
      path, {"--steps", "1000", "--pace", "1MB,1MB", "--io-engine", "threads"});
}

// Bytes that the process has read or written by system calls.
int64_t BytesMoved(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  std::string line;
  int64_t bytes = 0;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, field + ": ") &&
        absl::SimpleAtoi(rest, &bytes)) {
      return bytes;
    }
  }
  return -1;
}

// A job's directory is there, and its file, if `preallocated` with its space.
bool JobStarted(const TemporaryDirectory& path, bool preallocated) {
  for (const std::string& name : path.Entries()) {
    std::error_code none_yet;
    const auto bytes = std::filesystem::file_size(
        path.path() + "/" + name + "/state", none_yet);
    if (!preallocated || (!none_yet && bytes > 500000)) return true;
  }
  return false;
}

struct Moment {
  std::string name;
  // Waits for it; false: the run ended before.
  bool (*wait)(ChildProcess& run, const TemporaryDirectory& path);
};

std::ostream& operator<<(std::ostream& out, const Moment& moment) {
  return out << moment.name;
}

bool WaitForDirectory(ChildProcess& run, const TemporaryDirectory& path) {
  return run.WaitUntil([&] { return JobStarted(path, false); });
}

bool WaitForSpace(ChildProcess& run, const TemporaryDirectory& path) {
  return run.WaitUntil([&] { return JobStarted(path, true); });
}

// The first writes of the first step are under way.
bool WaitForWrites(ChildProcess& run, const TemporaryDirectory& path) {
  if (!WaitForSpace(run, path)) return false;
  const int64_t before = BytesMoved(run.pid(), "wchar");
  return run.WaitUntil(
      [&] { return BytesMoved(run.pid(), "wchar") > before + 20000; });
}

// Half of what the second step reads was read; it reads half a megabyte.
bool WaitForMiddleOfStep(ChildProcess& run, const TemporaryDirectory&) {
  if (!run.WaitForOutput("step 1/")) return false;
  const int64_t before = BytesMoved(run.pid(), "rchar");
  return run.WaitUntil(
      [&] { return BytesMoved(run.pid(), "rchar") > before + 250000; });
}

bool WaitForLaterStep(ChildProcess& run, const TemporaryDirectory&) {
  return run.WaitForOutput("step 3/");
}

class KilledTest : public testing::TestWithParam<Moment> {};

TEST_P(KilledTest, TheNextRunReclaimsWhatIsLeftAndLeavesNothing) {
  TemporaryDirectory path;
  {
    ChildProcess run(TrainGpt(Slow(path.path())));
    ASSERT_TRUE(GetParam().wait(run, path)) << run.Wait().errors;
    run.Kill(SIGKILL);
    ASSERT_EQ(run.Wait().signal, SIGKILL);
  }
  // Else nothing would be shown by its absence later.
  EXPECT_THAT(path.Entries(), SizeIs(1));
  const ChildResult next =
      RunTrainGpt(Offloaded(path.path(), {"--steps", "3", "--verify"}));
  EXPECT_EQ(next.exit_code, 0) << next.errors;
  EXPECT_THAT(next.output, HasSubstr("serial reference: identical"));
  EXPECT_TRUE(path.empty());
}

INSTANTIATE_TEST_SUITE_P(Moments, KilledTest,
                         testing::Values(Moment{"Start", WaitForDirectory},
                                         Moment{"Preallocated", WaitForSpace},
                                         Moment{"FirstWrites", WaitForWrites},
                                         Moment{"MiddleOfAStep",
                                                WaitForMiddleOfStep},
                                         Moment{"LaterStep", WaitForLaterStep}),
                         [](const auto& moment) { return moment.param.name; });

TEST(InterruptedTest, ASignalStopsTheRunInOrder) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const auto wait : {WaitForSpace, WaitForMiddleOfStep}) {
      TemporaryDirectory path, report;
      Arguments arguments = Slow(path.path());
      arguments.push_back("--json=" + report.path() + "/run.json");
      ChildProcess run(TrainGpt(arguments));
      ASSERT_TRUE(wait(run, path)) << run.Wait().errors;
      run.Kill(signal);
      const ChildResult& result = run.Wait();
      EXPECT_EQ(result.exit_code, 128 + signal) << result.errors;
      EXPECT_EQ(result.errors, std::string("train_gpt: interrupted: ") +
                                   (signal == SIGINT ? "SIGINT" : "SIGTERM") +
                                   "\n");
      EXPECT_TRUE(path.empty());
      EXPECT_TRUE(report.empty());
    }
  }
}

// Whether the process would be ended by the next SIGINT.
bool CatchesNoSigint(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    absl::string_view digits = line;
    if (!absl::ConsumePrefix(&digits, "SigCgt:\t")) continue;
    return (std::stoull(std::string(digits), nullptr, 16) >> (SIGINT - 1)) %
               2 ==
           0;
  }
  return false;
}

TEST(InterruptedTest, ASecondSignalEndsAtOnceAndTheNextRunReclaims) {
  TemporaryDirectory path;
  {
    // Half a megabyte each way takes 17 seconds.
    ChildProcess run(TrainGpt(Offloaded(
        path.path(), {"--pace", "30KB,30KB", "--io-engine", "threads"})));
    ASSERT_TRUE(WaitForWrites(run, path)) << run.Wait().errors;
    EXPECT_FALSE(CatchesNoSigint(run.pid()));
    run.Kill(SIGINT);
    ASSERT_TRUE(run.WaitUntil([&] { return CatchesNoSigint(run.pid()); }));
    run.Kill(SIGINT);
    EXPECT_EQ(run.Wait().signal, SIGINT);
  }
  EXPECT_THAT(path.Entries(), SizeIs(1));
  const ChildResult next =
      RunTrainGpt(Offloaded(path.path(), {"--steps", "1"}));
  EXPECT_EQ(next.exit_code, 0) << next.errors;
  EXPECT_TRUE(path.empty());
}

TEST(SharedPathTest, TwoJobsAtOnceTrainAsEachWouldAlone) {
  TemporaryDirectory path, reports;
  const auto job = [&](const std::string& name, const std::string& seed,
                       const std::string& pace) {
    return TrainGpt(Offloaded(
        path.path(), {"--steps", "6", "--seed", seed, "--pace", pace,
                      "--verify", "--json", reports.path() + "/" + name}));
  };
  for (const char* seed : {"1", "2"}) {
    const ChildResult& alone =
        ChildProcess(job(std::string("alone") + seed, seed, "3MB,3MB")).Wait();
    ASSERT_EQ(alone.exit_code, 0) << alone.errors;
  }
  // So slow that the first one is there long after the second one's start.
  ChildProcess first(job("together1", "1", "300KB,300KB"));
  ChildProcess second(job("together2", "2", "300KB,300KB"));
  // Both are there at once, and go on.
  EXPECT_TRUE(first.WaitUntil([&] { return path.Entries().size() == 2; }));
  EXPECT_TRUE(first.running() && second.running());
  EXPECT_EQ(first.Wait().exit_code, 0) << first.Wait().errors;
  EXPECT_EQ(second.Wait().exit_code, 0) << second.Wait().errors;
  EXPECT_TRUE(path.empty());
  std::vector<nlohmann::json> losses;
  for (const std::string seed : {"1", "2"}) {
    const auto alone = ReadJson(reports.path() + "/alone" + seed);
    const auto together = ReadJson(reports.path() + "/together" + seed);
    EXPECT_THAT(alone["losses"], SizeIs(6));
    EXPECT_EQ(alone["losses"], together["losses"]);
    // Parameters, bit for bit.
    EXPECT_EQ(together["verify"]["reference"], "identical");
    losses.push_back(alone["losses"]);
  }
  EXPECT_NE(losses[0], losses[1]);
}

}  // namespace
}  // namespace train_gpt
