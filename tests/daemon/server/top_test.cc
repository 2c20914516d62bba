// `terrace top` against a daemon that runs.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class TopTest : public testing::Test {
 protected:
  TopTest() : daemon_("") {}
  void SetUp() override { ASSERT_TRUE(daemon_.Serves()); }
  std::vector<std::string> Command(
      const std::vector<std::string>& options) const {
    std::vector<std::string> command = {
        TERRACE_PROGRAM, "top", "--daemon",
        absl::StrCat("unix:", daemon_.socket())};
    command.insert(command.end(), options.begin(), options.end());
    return command;
  }

  RunningDaemon daemon_;
};

TEST_F(TopTest, OnceItSaysWhatAJobHasAndMoved) {
  auto job = ConnectAs(daemon_, 1 << 20, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<TensorId> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(*RegisterOf(**job, absl::StrCat("t", i), 64 << 10));
  }
  for (const TensorId each : tensors) ASSERT_TRUE(FillOf(**job, each, 1));
  auto held = (*job)->Acquire(tensors[0], Access::kRead, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  const ChildResult result = ChildProcess(Command({"--once", "--json"})).Wait();
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json.at("phase"), "serving");
  ASSERT_EQ(json.at("jobs").size(), 1u);
  const auto& told = json.at("jobs")[0];
  EXPECT_EQ(told.at("name"), "night");
  EXPECT_EQ(told.at("uid"), getuid());
  EXPECT_EQ(told.at("processes"), 1);
  const auto& memory = told.at("tiers")[0];
  EXPECT_EQ(memory.at("name"), "dram");
  EXPECT_EQ(memory.at("used_bytes"), 1 << 20);
  EXPECT_EQ(memory.at("pinned_bytes"), (64 << 10) + 4096);
  EXPECT_EQ(memory.at("pinned_bytes").get<int64_t>() +
                memory.at("dirty_bytes").get<int64_t>() +
                memory.at("clean_bytes").get<int64_t>() +
                memory.at("free_bytes").get<int64_t>(),
            1 << 20);
  // 40 tensors that do not fit in 1 MiB.
  EXPECT_GE(told.at("bytes_down"), 25 * (64 << 10));
  const ChildResult text = ChildProcess(Command({"--once"})).Wait();
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  // And those that compute checksums.
  const size_t pool = ThreadsNamed(daemon_.pid(), "terrace-exec").size();
  EXPECT_THAT(text.output,
              HasSubstr(absl::StrCat(", serving, ", 8 + pool, " loops\n")));
  EXPECT_THAT(text.output, HasSubstr("night  dram"));
  EXPECT_THAT(text.output, testing::Not(HasSubstr("\x1b")));  // no terminal
}

TEST_F(TopTest, ItGoesOnUntilTheDaemonEnds) {
  ChildProcess top(Command({"--json"}));
  ASSERT_TRUE(top.WaitForOutput("}\n{"));
  EXPECT_EQ(daemon_.End().exit_code, 0);
  const ChildResult& ended = top.Wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("terrace top: "));
  const std::vector<std::string> lines =
      absl::StrSplit(ended.output, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

TEST_F(TopTest, WhatItDoesNotKnowIsRefused) {
  EXPECT_EQ(ChildProcess(Command({"--twice"})).Wait().exit_code, 2);
  EXPECT_EQ(ChildProcess(Command({"job"})).Wait().exit_code, 2);
}

}  // namespace
}  // namespace terrace
