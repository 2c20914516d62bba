#include <string>

#include "absl/status/status.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/printable.h"
#include "daemon/cli/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Arguments> Parse(const std::vector<std::string>& text) {
  return ParseArguments(text, {"json"}, {"out"});
}

TEST(ArgumentsTest, WordsAndOptionsInAnyOrder) {
  const auto parsed = Parse({"/a", "--json", "--out", "-", "/b"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->words, ElementsAre("/a", "/b"));
  EXPECT_TRUE(parsed->Has("json"));
  EXPECT_EQ(parsed->options.at("out"), "-");
  EXPECT_EQ(Parse({"--out=x=y"})->options.at("out"), "x=y");
}

TEST(ArgumentsTest, AllBehindTwoDashesAreWords) {
  const auto parsed = Parse({"--", "--json", "-x"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed->words, ElementsAre("--json", "-x"));
  EXPECT_FALSE(parsed->Has("json"));
}

TEST(ArgumentsTest, AListedOptionMayBeThereTwice) {
  const auto parsed =
      ParseArguments({"--tier", "a", "/x", "--tier=b=c"}, {}, {}, {"tier"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->lists.at("tier"), ElementsAre("a", "b=c"));
  EXPECT_THAT(parsed->words, ElementsAre("/x"));
  EXPECT_FALSE(parsed->Has("tier"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ParseArguments({"--tier"}, {}, {}, {"tier"}).status()));
}

TEST(ArgumentsTest, WhatIsWrongIsNamed) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--jsno"}, "--jsno"},
      {{"-j"}, "-j"},
      {{"--json=1"}, "--json takes no value"},
      {{"--out"}, "--out needs a value"},
      {{"--json", "--json"}, "twice"}};
  for (const auto& [text, what] : wrong) {
    const absl::Status status = Parse(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr(what));
  }
}

TEST(TableTest, ColumnsAreAlignedAndLongTextIsFolded) {
  Table table;
  table.Add("a", "one two three four five six");
  table.Add("long", "x");
  table.Add("none", "");
  table.AddWhole("", "a command that is not folded anywhere");
  EXPECT_EQ(table.Format(26),
            "a     one two three four\n"
            "      five six\n"
            "long  x\n"
            "      a command that is not folded anywhere\n");
}

TEST(PrintableTest, WhatATerminalObeysIsEscapedAndWordsStay) {
  const std::pair<std::string, std::string> texts[] = {
      {"night's \"run\" 7", "night's \"run\" 7"},
      {"größe 夜 🌙", "größe 夜 🌙"},
      {"a\x1b[2Jb\tc\n", "a\\x1b[2Jb\\x09c\\x0a"},
      {std::string("\x00\x7f", 2), "\\x00\\x7f"},
      {"\xc2\x9b"
       "2J",
       "\\xc2\\x9b"
       "2J"},                                          // one byte, in UTF-8
      {"\xff\xc3(\xe2\x82", "\\xff\\xc3(\\xe2\\x82"},  // no UTF-8
      {"\xc0\x9b\xed\xa0\x80", "\\xc0\\x9b\\xed\\xa0\\x80"},
      {"a\u202e"
       "b",
       "a\\xe2\\x80\\xae"
       "b"}};  // from right to left
  for (const auto& [text, shown] : texts) EXPECT_EQ(Printable(text), shown);
}

TEST(TableTest, NamesAreShownAsATerminalCanHaveThem) {
  Table table;
  table.Add("job\x1b", "night\x1b[2J");
  table.AddWhole("path", "/a\rb");
  EXPECT_EQ(table.Format(80), "job\\x1b  night\\x1b[2J\npath     /a\\x0db\n");
}

TEST(TableTest, JoinLeavesOutWhatIsEmpty) {
  EXPECT_EQ(Join({"", "a", "", "b", ""}, ", "), "a, b");
}

TEST(ReportTableTest, EachFindingHasItsCommandAndTheVerdictIsLast) {
  MachineReport report;
  report.findings = {
      {Severity::kMissing, "/mnt/a", "is not there", "mkdir -p /mnt/a"},
      {Severity::kSlower, "huge pages", "are off", "echo madvise"},
      {Severity::kSlower, "gpu", "none", ""}};
  const std::string text = FormatReport(report, 80);
  EXPECT_THAT(text, HasSubstr("missing  /mnt/a: is not there\n"
                              "  mend   mkdir -p /mnt/a\n"
                              "slower   huge pages: are off\n"
                              "  mend   echo madvise\n"
                              "slower   gpu: none\n"));
  EXPECT_THAT(text,
              testing::EndsWith(
                  "\nverdict: not usable, 1 necessary thing missing, 2 things "
                  "cost speed or safety\n"));
  report.findings.clear();
  EXPECT_THAT(FormatReport(report, 80),
              testing::EndsWith("\nverdict: usable, nothing costs speed\n"));
}

TEST(ReportTableTest, EachTierHasItsFacts) {
  MachineReport report;
  TierReport& far = report.tiers.emplace_back();
  far.tier = {.kind = TierKind::kFar, .place = "node2"};
  far.size_bytes = far.free_bytes = 1 << 30;
  far.page_bytes = 4096;
  far.huge_page_share = 0.5;
  far.memory_only = far.movable = true;
  far.dax_device = "dax1.0";
  far.can_pin = 0;
  far.pin_error = "EPERM";
  TierReport& pmem = report.tiers.emplace_back();
  pmem.tier = {.kind = TierKind::kPmem, .place = "/mnt/p"};
  pmem.status = absl::UnavailableError("taken");
  pmem.file_system = "xfs";
  pmem.granularity = "PAGE";
  pmem.granularity_cause = "no MAP_SYNC";
  pmem.bad_bytes = 4096;
  pmem.can_pin = 0;
  pmem.pin_error = "EOPNOTSUPP";
  TierReport& hbm = report.tiers.emplace_back();
  hbm.tier = {.kind = TierKind::kHbm, .place = "cuda:0"};
  hbm.can_pin = 0;
  hbm.pin_error = "cudaHostRegister: 304";
  const std::string text = FormatReport(report, 10'000);
  for (const char* const each :
       {"far:node2", "size 1 GiB, free 1 GiB, page 4 KiB, huge page share 50 %",
        "node asked 2", "memory only yes, movable yes, dax device dax1.0",
        "can pin no, pin error EPERM", "pmem:/mnt/p",
        "error UNAVAILABLE: taken", "file system xfs",
        "granularity PAGE, granularity cause no MAP_SYNC", "bad 4 KiB",
        "pin error EOPNOTSUPP", "hbm:cuda:0",
        "pin error cudaHostRegister: 304"}) {
    EXPECT_THAT(text, HasSubstr(each));
  }
}

TEST(ReportTableTest, NoLineOfFactsIsLongerThanAsked) {
  const MachineReport report = ProbeMachine({"/"});
  const std::string text = FormatReport(report, 100);
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    if (line.rfind("  mend", 0) == 0) continue;
    EXPECT_LE(line.size(), 100u) << line;
  }
}

}  // namespace
}  // namespace terrace::cli
