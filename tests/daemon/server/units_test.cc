// The units of systemd, by systemd's own reading of them. It needs no systemd
// that runs.
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

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

TEST(UnitsTest, NoLineIsUnknown) {
  if (!std::filesystem::exists(kAnalyze)) GTEST_SKIP() << "no " << kAnalyze;
  const ChildResult result =
      ChildProcess({kAnalyze, "verify", TERRACED_UNITS "/terraced.service",
                    TERRACED_UNITS "/terraced.socket"})
          .Wait();
  // The program is not installed.
  EXPECT_THAT(result.errors, testing::Not(testing::HasSubstr("Unknown")))
      << result.errors;
  EXPECT_THAT(result.errors, testing::Not(testing::HasSubstr("ignoring")))
      << result.errors;
}

}  // namespace
}  // namespace terrace
