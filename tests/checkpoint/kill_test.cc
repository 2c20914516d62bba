// Saves that are killed, at each system call and at any time, and saves whose
// calls fail: what is there is the old checkpoint or the new one, whole, and
// the next start goes on from it exactly.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/saver.h"
#include "tests/support/child_process.h"

namespace terrace {
namespace {

using testing::SizeIs;

class KilledSave : public testing::Test {
 protected:
  KilledSave() : model_(SaverModel()), reference_(model_, {}) {
    const char* before = std::getenv("TMPDIR");
    if (before != nullptr) before_ = before;
    setenv("TMPDIR", scratch_.path().c_str(), 1);
  }
  ~KilledSave() override {
    if (before_.has_value()) {
      setenv("TMPDIR", before_->c_str(), 1);
    } else {
      unsetenv("TMPDIR");
    }
  }

  static std::vector<std::string> Saver(const std::string& directory,
                                        int64_t steps, int64_t save = 0,
                                        size_t call = 0, int error = 0) {
    return {SAVER,
            directory,
            absl::StrCat(steps),
            absl::StrCat(save),
            absl::StrCat(call),
            absl::StrCat(error)};
  }

  // Whether the checkpoint is what training for its steps gives, bit for bit;
  // the steps, 0 if there is none.
  int64_t ExpectExact(const std::string& directory) {
    auto checkpoint = Checkpoint::Open(directory);
    if (absl::IsNotFound(checkpoint.status())) return 0;
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return -1;
    const int64_t step = (*checkpoint)->step();
    EXPECT_EQ((*checkpoint)->values(), SaverValues(step));
    Job job(Model::Mixed(1), {});
    EXPECT_TRUE(job.ok());
    const absl::Status loaded =
        (*checkpoint)->Load(job.tensors(), &job.optimizer(), InAMinute());
    EXPECT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(job.optimizer().step(), step);
    const ReferenceOptimizer& reference = After(step);
    EXPECT_EQ(reference.Difference(job.model()), "");
    EXPECT_EQ(reference.StateDifference(job.optimizer()), "");
    return step;
  }

  // The next start goes on from `step` and to the end, and nothing stays but
  // the checkpoint.
  void ExpectGoesOn(const std::string& directory, int64_t step, int64_t steps) {
    const ChildResult result = ChildProcess(Saver(directory, steps)).Wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(absl::StrContains(result.output, absl::StrCat("resumed ", step)),
              step > 0)
        << result.output;
    EXPECT_EQ(ExpectExact(directory), steps);
  }

  // What a serial loop over plain vectors gives.
  const ReferenceOptimizer& After(int64_t step) {
    while (reference_.step() < step) {
      model_.DrawGradients(reference_.step() + 1);
      reference_.Step({}, model_);
      references_.emplace(reference_.step(), reference_);
    }
    return references_.at(step);
  }

 private:
  // Killed children leave their scratch: it goes with this.
  TemporaryDirectory scratch_;
  std::optional<std::string> before_;
  Model model_;
  ReferenceOptimizer reference_;
  std::map<int64_t, ReferenceOptimizer> references_;
};

// "NAME FILE" of each call in the save after step `save`.
std::vector<std::string> CallsIn(const std::vector<std::string>& command) {
  const ChildResult result = ChildProcess(command).Wait();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  std::vector<std::string> calls;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    absl::string_view call = line;
    if (absl::ConsumePrefix(&call, "call ")) calls.emplace_back(call);
  }
  return calls;
}

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

TEST_F(KilledSave, AtAnySystemCallLeavesTheOldOrTheNewCheckpoint) {
  int kills = 0;
  for (const int64_t save : {1, 2}) {
    std::vector<std::string> calls;
    {
      TemporaryDirectory directory;
      calls = CallsIn(Saver(directory.path(), 2, save));
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
          ChildProcess(Saver(directory.path(), 2, save, call)).Wait();
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

TEST_F(KilledSave, WhereAnySystemCallFailsLeavesTheOldOrTheNewCheckpoint) {
  std::vector<std::string> calls;
  {
    TemporaryDirectory directory;
    calls = CallsIn(Saver(directory.path(), 2, 2));
  }
  for (size_t call = 1; call <= calls.size(); ++call) {
    if (IsSpared(calls[call - 1], call)) continue;
    const int error = call % 2 == 0 ? EIO : ENOSPC;
    SCOPED_TRACE(absl::StrCat("call ", call, " of ", calls.size(), ": ",
                              calls[call - 1], ": ", error));
    TemporaryDirectory directory;
    const ChildResult result =
        ChildProcess(Saver(directory.path(), 2, 2, call, error)).Wait();
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

// What a power loss takes is what was not flushed, so the order is what counts.
TEST_F(KilledSave, FlushesBeforeItNamesAndNamesBeforeItRemoves) {
  TemporaryDirectory directory;
  const auto calls = CallsIn(Saver(directory.path(), 2, 2));
  const std::string folder =
      directory.path().substr(directory.path().rfind('/') + 1);
  std::set<std::string> unflushed, unflushed_names, created;
  bool renamed = false;
  for (const std::string& call : calls) {
    const std::string name = call.substr(0, call.find(' '));
    const std::string file = call.substr(call.find(' ') + 1);
    SCOPED_TRACE(call);
    if (name == "create") {
      EXPECT_FALSE(renamed);
      created.insert(file);
      unflushed_names.insert(file);
    } else if (name == "pwrite" || name == "fallocate") {
      EXPECT_EQ(created.count(file), 1u) << "an old file is written to";
      unflushed.insert(file);
    } else if (name == "fsync" && file == folder) {
      unflushed_names.clear();
    } else if (name == "fsync") {
      unflushed.erase(file);
    } else if (name == "rename") {
      EXPECT_EQ(file, "checkpoint.json");
      EXPECT_TRUE(unflushed.empty()) << *unflushed.begin();
      EXPECT_TRUE(unflushed_names.empty()) << *unflushed_names.begin();
      renamed = true;
      unflushed_names.insert(file);
    } else if (name == "unlink" && file != "checkpoint.json.new") {
      EXPECT_TRUE(renamed);
      EXPECT_TRUE(unflushed_names.empty()) << "the rename may be lost";
      EXPECT_EQ(created.count(file), 0u);
    }
  }
  EXPECT_TRUE(renamed);
  EXPECT_THAT(created, SizeIs(kSaverFiles));
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
