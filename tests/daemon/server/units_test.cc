// The units of systemd, by systemd's own reading of them. It needs no systemd
// that runs.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/options.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr char kAnalyze[] = "/usr/bin/systemd-analyze";

TEST(UnitsTest, TheServiceIsConfined) {
  if (!std::filesystem::exists(kAnalyze)) GTEST_SKIP() << "no " << kAnalyze;
  // Of 10, times 10; an ordinary service has 96.
  const ChildResult result =
      ChildProcess({kAnalyze, "--offline=true", "--threshold=20", "security",
                    TERRACED_UNITS "/terraced.service"})
          .Wait();
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, testing::HasSubstr("Overall exposure level"));
}

std::string Verified(const std::vector<std::string>& units) {
  std::vector<std::string> command = {kAnalyze, "verify"};
  command.insert(command.end(), units.begin(), units.end());
  return ChildProcess(command).Wait().errors;  // the program is not installed
}

TEST(UnitsTest, NoLineIsUnknown) {
  if (!std::filesystem::exists(kAnalyze)) GTEST_SKIP() << "no " << kAnalyze;
  const TemporaryDirectory directory;
  const std::string wrong = directory.Write(
      "wrong.service", "[Service]\nExecStart=/bin/true\nProtectSytem=yes\n");
  const std::string unknown = Verified({wrong});
  if (unknown.find("ProtectSytem") == std::string::npos) {
    GTEST_SKIP() << kAnalyze << " cannot begin here: " << unknown;
  }
  const std::string errors = Verified(
      {TERRACED_UNITS "/terraced.service", TERRACED_UNITS "/terraced.socket"});
  EXPECT_THAT(errors, testing::Not(testing::HasSubstr("Unknown")));
  EXPECT_THAT(errors, testing::Not(testing::HasSubstr("ignoring")));
}

// A number of the service's; -1: it has none.
double NumberOf(const std::string& key) {
  std::ifstream unit(TERRACED_UNITS "/terraced.service");
  for (std::string line; std::getline(unit, line);) {
    double number = -1;
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, key + "=") &&
        absl::SimpleAtod(value, &number)) {
      return number;
    }
  }
  return -1;
}

TEST(UnitsTest, OneThatDiesIsGivenUpOnceNoJobWaitsForIt) {
  const double patience = absl::ToDoubleSeconds(Options().io_timeout);
  EXPECT_GE(NumberOf("StartLimitBurst") * NumberOf("RestartSec"), patience);
  // So many are counted, with what each takes to die.
  EXPECT_GE(NumberOf("StartLimitIntervalSec"), 2 * patience);
}

TEST(UnitsTest, OneThatHasStoppedIsKilledBeforeItsJobsGiveItUp) {
  EXPECT_GT(NumberOf("WatchdogSec"), 0);
  EXPECT_LT(NumberOf("WatchdogSec") + NumberOf("RestartSec"),
            absl::ToDoubleSeconds(Options().io_timeout) / 4);
}

}  // namespace
}  // namespace terrace
