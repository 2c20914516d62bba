// terrace-bench runs: every subcommand, and every section of `io`, in its
// smallest size, gives rows that a program can read. Not how fast anything is.
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

struct Question {
  const char* name;
  std::vector<std::string> words;  // DIR stands for an empty directory
  bool on_disk = false;
};

class BenchSmoke : public testing::TestWithParam<Question> {};
INSTANTIATE_TEST_SUITE_P(
    Questions, BenchSmoke,
    testing::ValuesIn(std::vector<Question>{
        {"adam", {"adam", "--parameters", "64K", "--threads", "1"}},
        {"step", {"step", "--parameters", "1M", "--threads", "1"}},
        {"step_on_disk",
         {"step", "--parameters", "4M", "--budget", "50", "--threads", "1"},
         true},
        {"paths", {"paths", "--parameters", "1M"}},
        {"tiers", {"tiers", "--size", "9M", "--parameters", "8M"}, true},
        {"tiers_nvme", {"tiers", "--tier", "nvme:DIR=16MiB"}},
        {"tiers_pmem", {"tiers", "--tier", "pmem:DIR=9MiB", "--unsafe-media"}},
        {"daemon",
         {"daemon", "--parameters", "1M", "--tensors", "1000", "--idle", "1"},
         true},
        {"daemon_links", {"daemon-links", "--window", "300"}, true},
        {"device", {"device", "--device", "threads", "--size", "9M"}},
        {"device_step",
         {"device-step", "--device", "threads", "--size", "128M"},
         true},
        {"io_engines", {"io", "--sections", "engines"}, true},
        {"io_demand", {"io", "--sections", "demand"}, true},
        {"io_sizes", {"io", "--sections", "sizes"}, true},
        {"io_paths", {"io", "--sections", "paths"}, true},
        {"io_states", {"io", "--sections", "states"}, true},
    }),
    [](const auto& question) { return std::string(question.param.name); });

// The median of what a row measured, by whichever of the names it has.
double MedianOf(const nlohmann::json& row) {
  for (const char* name : {"measured", "mib_per_second", "ratio"}) {
    if (!row.contains(name)) continue;
    const nlohmann::json& spread = row[name];
    if (spread.is_array() && spread.size() == 3 && spread[1].is_number()) {
      return spread[1].get<double>();
    }
  }
  return 0;
}

TEST_P(BenchSmoke, RowsAreRead) {
  const TemporaryDirectory directory;
  std::vector<std::string> command = {TERRACE_BENCH};
  for (const std::string& word : GetParam().words) {
    command.push_back(absl::StrReplaceAll(word, {{"DIR", directory.path()}}));
  }
  for (const char* word : {"--rounds", "1", "--json"}) command.push_back(word);
  const std::string& key = GetParam().words[0];
  if (key != "adam" && key != "daemon" && key != "daemon-links") {
    for (const char* word : {"--gate", "0"}) command.push_back(word);
  }
  if (GetParam().on_disk) {
    for (const std::string& word : {std::string("--path"), directory.path()}) {
      command.push_back(word);
    }
  }
  if (GetParam().words[0] == "io") {
    for (const char* word : {"--size", "256M", "--samples", "10"}) {
      command.push_back(word);
    }
  }
  ChildProcess child(command);
  const ChildResult& result = child.Wait();
  if (absl::StrContains(result.errors, "libpmem2-dev")) {
    GTEST_SKIP() << result.errors;
  }
  if (result.exit_code != 0) {
    // Rows of a paced device are void where it could not keep its time.
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.errors, HasSubstr("the machine was too busy"));
  }
  std::istringstream lines(result.output);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(row.is_object()) << line;
    EXPECT_GT(MedianOf(row), 0) << line;
  }
  EXPECT_GT(rows, 0) << result.errors;
  EXPECT_TRUE(directory.empty()) << "files are left behind";
}

// Two tensors of two pages each in turn, one of which is written, and room for
// one: each use reads, and each second one writes.
TEST(Bench, ATraceIsReplayedWithFarthestNextUse) {
  const TemporaryDirectory directory;
  const std::string trace = directory.path() + "/trace";
  std::ofstream(trace) << "a:8192\nb:8192w\n";
  ChildProcess child({TERRACE_BENCH, "offline", "--trace", trace, "--budget",
                      "16K", "--reserved", "8K", "--rounds", "3", "--json"});
  const ChildResult& result = child.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output,
            "{\"row\": \"less\", \"budget\": 8192, \"read\": 49152, "
            "\"written\": 24576, \"beyond\": 0}\n"
            "{\"row\": \"whole\", \"budget\": 16384, \"read\": 0, "
            "\"written\": 0, \"beyond\": 0}\n");
  ChildProcess none({TERRACE_BENCH, "offline", "--trace", trace + ".none"});
  EXPECT_EQ(none.Wait().exit_code, 1);
  EXPECT_THAT(none.Wait().errors, HasSubstr("no trace"));
}

// Where there is a GPU its rows are read, else one line says what is missing.
TEST(Bench, ADeviceIsMeasuredOrItsAbsenceTold) {
  ChildProcess child({TERRACE_BENCH, "device", "--size", "9M", "--rounds", "1",
                      "--gate", "0", "--json"});
  const ChildResult& result = child.Wait();
  if (result.exit_code == 0) {
    EXPECT_THAT(result.output, HasSubstr("cudaMemcpyAsync"));
  } else {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.errors, HasSubstr("terrace-bench device: cuda:0: "));
  }
  ChildProcess wrong({TERRACE_BENCH, "device", "--device", "gpu0"});
  EXPECT_EQ(wrong.Wait().exit_code, 1);
  EXPECT_THAT(wrong.Wait().errors, HasSubstr("names no device of CUDA"));
}

TEST(Bench, ATierThatIsNotThereIsNamed) {
  const TemporaryDirectory directory;
  const std::pair<std::string, const char*> wrongs[] = {
      {"far:node1023", "there is no node1023; this machine has node0"},
      {"pmem:" + directory.path() + "=9MiB",
       "libpmem2|no persistent memory: .*granularity PAGE"},
      {"nvme:" + directory.path() + "/none", "ENOENT|No such file"},
      {"dram=9MiB", "'dram=9MiB': copies are measured of far memory"},
      {"tape:/dev/st0", "not 'tape'"}};
  for (const auto& [tier, why] : wrongs) {
    ChildProcess child({TERRACE_BENCH, "tiers", "--tier", tier});
    const ChildResult& result = child.Wait();
    EXPECT_EQ(result.exit_code, 1) << tier;
    EXPECT_TRUE(std::regex_search(result.errors, std::regex(why)))
        << result.errors;
  }
  EXPECT_TRUE(directory.empty());
}

TEST(Bench, AnUnknownQuestionIsRefused) {
  ChildProcess child({TERRACE_BENCH, "speed"});
  const ChildResult& result = child.Wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("usage: terrace-bench"));
}

}  // namespace
}  // namespace terrace
