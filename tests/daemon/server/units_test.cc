// The units of systemd, by systemd's own reading of them. It needs no systemd
// that runs.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace terrace
