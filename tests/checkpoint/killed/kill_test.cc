// Saves that are killed, at each system call and at any time, and saves whose
// calls fail: what is there is the old checkpoint or the new one, whole, and
// the next start goes on from it exactly.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/killed/killed_save.h"
#include "tests/checkpoint/killed/saver.h"
#include "tests/support/child_process.h"

namespace terrace {
namespace {

using testing::SizeIs;

// Kills at any time; and with the variable, at every call of a save, whereas
// without it most of its many writes are passed over.
constexpr char kKillsVariable[] = "TERRACE_KILLS";

int Kills() {
  const char* kills = std::getenv(kKillsVariable);
  return kills == nullptr ? 10 : std::atoi(kills);
}

bool IsSpared(const std::string& call, size_t index) {
  return std::getenv(kKillsVariable) == nullptr &&
         absl::StartsWith(call, "pwrite") && index % 13 != 0;
}

struct KilledSaveOf : KilledSave, testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, KilledSaveOf, testing::Values(1, 2));

TEST_P(KilledSaveOf, AtAnySystemCallLeavesTheOldOrTheNewCheckpoint) {
  const int parts = GetParam();
  int kills = 0;
  for (const int64_t save : {1, 2}) {
    std::vector<std::string> calls;
    {
      TemporaryDirectory directory;
      calls = CallsIn(Saver(directory.path(), 2, save, 0, 0, parts));
    }
    ASSERT_GT(calls.size(), 40u);
    std::set<int64_t> outcomes;
    for (size_t call = 1; call <= calls.size(); ++call) {
      if (IsSpared(calls[call - 1], call)) continue;
      // The files' names are others each time.
      SCOPED_TRACE(absl::StrCat("save ", save, ", call ", call, " of ",
                                calls.size(), ": ", calls[call - 1]));
      TemporaryDirectory directory;
      const ChildResult killed =
          ChildProcess(Saver(directory.path(), 2, save, call, 0, parts)).Wait();
      ASSERT_EQ(killed.signal, SIGKILL) << killed.errors;
      ++kills;
      const int64_t step = ExpectExact(directory.path());
      EXPECT_TRUE(step == save - 1 || step == save) << step;
      outcomes.insert(step);
      ExpectGoesOn(directory.path(), step, 3);
      EXPECT_THAT(directory.Entries(), SizeIs(kSaverFiles));
    }
    EXPECT_EQ(outcomes, (std::set<int64_t>{save - 1, save}));
  }
  RecordProperty("kills", std::to_string(kills));
}

TEST_P(KilledSaveOf, WhereAnySystemCallFailsLeavesTheOldOrTheNewCheckpoint) {
  const int parts = GetParam();
  std::vector<std::string> calls;
  {
    TemporaryDirectory directory;
    calls = CallsIn(Saver(directory.path(), 2, 2, 0, 0, parts));
  }
  for (size_t call = 1; call <= calls.size(); ++call) {
    if (IsSpared(calls[call - 1], call)) continue;
    const int error = call % 2 == 0 ? EIO : ENOSPC;
    SCOPED_TRACE(absl::StrCat("call ", call, " of ", calls.size(), ": ",
                              calls[call - 1], ": ", error));
    TemporaryDirectory directory;
    const ChildResult result =
        ChildProcess(Saver(directory.path(), 2, 2, call, error, parts)).Wait();
    const int64_t step = ExpectExact(directory.path());
    if (absl::StartsWith(calls[call - 1], "unlink")) {
      EXPECT_EQ(result.exit_code, 0) << result.errors;  // the next time
      EXPECT_EQ(step, 2);
    } else {
      EXPECT_EQ(result.exit_code, 3) << result.errors;
      EXPECT_TRUE(
          absl::StrContains(result.errors, error == EIO ? "EIO" : "ENOSPC") &&
          absl::StrContains(result.errors, directory.path()))
          << result.errors;
      EXPECT_TRUE(step == 1 || step == 2);
      if (step == 1) {
        EXPECT_THAT(directory.Entries(), SizeIs(kSaverFiles));
      }
    }
    ExpectGoesOn(directory.path(), step, 3);
    EXPECT_THAT(directory.Entries(), SizeIs(kSaverFiles));
  }
}

// Killed again and again; each start goes on where the one before was.
TEST_F(KilledSave, AtAnyTimeGoesOnExactlyEachTime) {
  const std::random_device::result_type seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  TemporaryDirectory directory;
  int64_t step = 0;
  for (int i = 0; i < Kills(); ++i) {
    ChildProcess child(Saver(directory.path(), 1'000'000));
    ASSERT_TRUE(child.WaitForOutput("saved ")) << child.Wait().errors;
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(random() % 20'000);
    child.WaitUntil([&] { return std::chrono::steady_clock::now() >= until; });
    child.Kill(SIGKILL);
    const ChildResult& result = child.Wait();
    ASSERT_EQ(result.signal, SIGKILL) << result.errors;
    if (step > 0) {
      EXPECT_TRUE(
          absl::StartsWith(result.output, absl::StrCat("resumed ", step, "\n")))
          << result.output;
    }
    // What it said that it had saved, or one that it had no time to tell of.
    const size_t last = result.output.rfind("saved ");
    const int64_t told = std::atol(result.output.c_str() + last + 6);
    step = ExpectExact(directory.path());
    EXPECT_TRUE(step == told || step == told + 1) << step << " " << told;
  }
  ExpectGoesOn(directory.path(), step, step + 1);
  EXPECT_THAT(directory.Entries(), SizeIs(kSaverFiles));
}

}  // namespace
}  // namespace terrace
