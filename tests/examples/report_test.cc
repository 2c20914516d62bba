// report.h: what the table claims.
#include "examples/train_gpt/report.h"

#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace train_gpt {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string LineWith(const std::string& table, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(table, '\n')) {
    if (std::string(line).find(name) != std::string::npos) {
      return std::string(line);
    }
  }
  return "no line";
}

// A share of a loop of other sizes, run at another time, was 161 % once.
TEST(ReportTest, TheDisksRateStandsAlone) {
  RunReport report;
  report.parameters = 1 << 20;
  report.state_bytes = 8 << 20;
  report.budget_bytes = 2 << 20;
  for (int step = 1; step <= 3; ++step) {
    report.steps.push_back({.step = step,
                            .seconds = 1,
                            .optimizer_seconds = 0.5,
                            .update_seconds = 0.25,
                            .bytes_read = 6 << 20,
                            .bytes_written = 6 << 20});
  }
  const std::string line =
      LineWith(SummaryTable(report), "disk in the optimizer");
  // 12 MiB in half a second.
  EXPECT_THAT(line, HasSubstr("24.0 MiB/s  read and written together"));
  EXPECT_THAT(line, Not(HasSubstr("%")));
}

}  // namespace
}  // namespace train_gpt
