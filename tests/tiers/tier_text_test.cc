#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/tier.h"
#include "tests/support/byte_units.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(TierTextTest, EveryKindIsReadAndSaidAgain) {
  const std::pair<const char*, TierSpec> texts[] = {
      {"hbm:cuda:0=10GiB", {TierKind::kHbm, "cuda:0", 10 * kGiB}},
      {"dram=8GiB", {TierKind::kDram, "", 8 * kGiB}},
      {"dram:node1=8GiB", {TierKind::kDram, "node1", 8 * kGiB}},
      {"far:node2=64GiB", {TierKind::kFar, "node2", 64 * kGiB}},
      {"far:node2", {TierKind::kFar, "node2", 0}},
      {"pmem:/mnt/pmem0=100GiB", {TierKind::kPmem, "/mnt/pmem0", 100 * kGiB}},
      {"pmem:/dev/dax0.0", {TierKind::kPmem, "/dev/dax0.0", 0}},
      {"nvme:/mnt/nvme0=500GiB", {TierKind::kDisk, "/mnt/nvme0", 500 * kGiB}},
      {"nvme:/mnt/nvme0", {TierKind::kDisk, "/mnt/nvme0", 0}},
      {"nvme:/mnt/a:b=c=3KiB", {TierKind::kDisk, "/mnt/a:b=c", 3 << 10}},
      {"nvme:relative=4097", {TierKind::kDisk, "relative", 4097}},
      {"nvme:/mnt/a=b=all", {TierKind::kDisk, "/mnt/a=b", 0}},
      {"nvme:/mnt/a=5GiB=all", {TierKind::kDisk, "/mnt/a=5GiB", 0}},
      {"pmem:/mnt/a==all", {TierKind::kPmem, "/mnt/a=", 0}},
      {"nvme:==1B", {TierKind::kDisk, "=", 1}},
      {"nvme:/mnt/a=all=all", {TierKind::kDisk, "/mnt/a=all", 0}},
  };
  for (const auto& [text, spec] : texts) {
    const absl::StatusOr<TierSpec> tier = ParseTier(text);
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_EQ(*tier, spec) << text;
    const std::string said = TierText(*tier);
    EXPECT_EQ(said, absl::EndsWith(text, "=1B") ? "nvme:==1" : text);
  }
}

TEST(TierTextTest, BudgetsAreSaidInTheirLargestWholeUnit) {
  const auto said = [](const char* text) {
    return TierText(ParseTier(text).value_or(TierSpec()));
  };
  EXPECT_EQ(said("dram=1024GiB"), "dram=1TiB");
  EXPECT_EQ(said("dram=1.5GiB"), "dram=1536MiB");
  EXPECT_EQ(said("dram=2GB"), "dram=1953125KiB");
  EXPECT_EQ(said("dram=9007199254740993"), "dram=9007199254740993");
}

TEST(TierTextTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"", "not ''"},
      {"disk:/mnt/a", "not 'disk'"},
      {"DRAM=1GiB", "not 'DRAM'"},
      {"dram", "dram needs a budget"},
      {"dram:node1", "dram needs a budget"},
      {"hbm:cuda:0", "hbm needs a budget"},
      {"dram=8XiB", "its budget is 8XiB"},
      {"dram=0", "its budget is 0"},
      {"dram=-1", "its budget is -1"},
      {"dram=", "its budget is ,"},
      {"dram:1=8GiB", "a memory node, node1, or none"},
      {"dram:node=8GiB", "a memory node, node1, or none"},
      {"dram:node-1=8GiB", "a memory node, node1, or none"},
      {"dram:node01=8GiB", "a memory node, node1, or none"},
      {"far=8GiB", "a memory node, node1;"},
      {"hbm=8GiB", "a device, cuda:0"},
      {"hbm:cuda:=8GiB", "a device, cuda:0"},
      {"hbm:0=8GiB", "a device, cuda:0"},
      {"nvme=8GiB", "its place is a path"},
      {"nvme:=8GiB", "its place is a path"},
      {"pmem", "its place is a path"},
      {"nvme:/mnt/a=b", "its budget is b"},
      {"nvme:/mnt/a=All", "its budget is All"},
      {"nvme:=all", "its place is a path"},
      {"dram=all", "dram needs a budget"},
      {"dram=1e9", "its budget is 1e9"},
  };
  for (const auto& [text, why] : wrongs) {
    const absl::Status status = ParseTier(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("tier '" + std::string(text) + "'"));
  }
}

TEST(TierTextTest, ANodeHasItsNumber) {
  EXPECT_EQ(NodeOf({.place = "node12"}), 12);
  EXPECT_EQ(NodeOf({.place = "node0"}), 0);
  EXPECT_EQ(NodeOf({.place = "node99999999999"}), -1);
  EXPECT_EQ(NodeOf({.place = "nodes"}), -1);
  EXPECT_EQ(NodeOf({.place = ""}), -1);
}

TEST(TierTextTest, AllIsWhatNoBudgetIs) {
  EXPECT_EQ(ParseTier("nvme:/a=all").value(), ParseTier("nvme:/a").value());
  EXPECT_EQ(TierText({TierKind::kDisk, "/a", 0}), "nvme:/a");
}

TEST(TierTextTest, ItsNameHasNoBudget) {
  EXPECT_EQ(TierName({TierKind::kDram, "", 5}), "dram");
  EXPECT_EQ(TierName({TierKind::kDram, "node1", 5}), "dram:node1");
  EXPECT_EQ(TierName({TierKind::kDisk, "/a=b", 0}), "nvme:/a=b");
}

TEST(TierTextTest, APathEndsAtNoZeroByte) {
  const TierSpec tier = {TierKind::kDisk, std::string("/a\0b", 4), 0};
  const absl::Status status = CheckTier(tier);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("zero byte"));
  EXPECT_FALSE(ParseTier(TierText(tier)).ok());
}

// Specs as a program may put them together, of what texts have trouble with.
class DrawnTier {
 public:
  explicit DrawnTier(uint32_t seed) : random_(seed) {}

  TierSpec Draw() {
    return {.kind = static_cast<TierKind>(Below(5)),
            .place = Place(),
            .budget_bytes = Budget()};
  }

 private:
  uint64_t Below(uint64_t count) { return random_() % count; }

  std::string Place() {
    if (Below(4) == 0) return absl::StrCat("node", Below(300));
    if (Below(4) == 0) return absl::StrCat("cuda:", Below(300));
    static constexpr const char* kParts[] = {
        "=",    ":",    "/",    "a",        "all", "5GiB", "64", " ",
        "nvme", "node", "dram", "\xc3\xa9", "\n",  "cuda", "B",  "1.5"};
    std::string place;
    for (uint64_t parts = Below(6); parts > 0; --parts) {
      place += kParts[Below(std::size(kParts))];
    }
    return place;
  }

  int64_t Budget() {
    if (Below(3) == 0) return 0;
    // Of every size, and many near what units and doubles end at.
    const int64_t near = int64_t{1} << Below(62);
    const auto bytes = static_cast<int64_t>(Below(5)) - 2;
    if (Below(2) == 0) return near + bytes;
    return static_cast<int64_t>(random_() >> (1 + Below(63)));
  }

  std::mt19937_64 random_;
};

TEST(TierTextTest, EveryValidTierIsReadBackAsItWas) {
  DrawnTier drawn(20261123);
  std::vector<int> valid(5);
  for (int i = 0; i < 200000; ++i) {
    const TierSpec tier = drawn.Draw();
    const std::string text = TierText(tier);
    const absl::StatusOr<TierSpec> read = ParseTier(text);
    if (!CheckTier(tier).ok()) {
      // Nor does its text stand for a tier that it is not.
      EXPECT_FALSE(read.ok() && *read == tier) << text;
      continue;
    }
    ++valid[static_cast<size_t>(tier.kind)];
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, tier) << text;
    ASSERT_EQ(TierText(*read), text);
  }
  EXPECT_GT(*std::min_element(valid.begin(), valid.end()), 1000);
}

struct Amount {
  std::string text;
  std::optional<int64_t> bytes;  // none: refused
};

std::vector<Amount> AmountRows() {
  std::ifstream file(TERRACE_BYTE_COUNTS);
  std::vector<Amount> rows;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "#")) continue;
    const size_t end = line.rfind("' ");
    EXPECT_NE(end, std::string::npos) << line;
    if (end == std::string::npos) continue;
    Amount& row = rows.emplace_back();
    row.text = line.substr(1, end - 1);
    int64_t bytes = 0;
    if (absl::SimpleAtoi(line.substr(end + 2), &bytes)) row.bytes = bytes;
  }
  return rows;
}

// The rows that Python reads too.
TEST(TierTextTest, AmountsAreWhatTheirRowsSay) {
  const std::vector<Amount> rows = AmountRows();
  EXPECT_GT(rows.size(), 60u);
  for (const Amount& row : rows) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(row.text);
    if (row.bytes.has_value()) {
      EXPECT_EQ(bytes.value_or(-1), *row.bytes) << row.text;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(bytes.status())) << row.text;
    EXPECT_THAT(std::string(bytes.status().message()),
                HasSubstr("'" + row.text + "' is no count of bytes"));
  }
}

TEST(TierTextTest, WhiteSpaceIsOfEveryKind) {
  EXPECT_EQ(ParseBytes("\t64\n MiB\r\f\v").value_or(-1), 64 << 20);
}

}  // namespace
}  // namespace terrace
