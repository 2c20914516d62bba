// A model whose training is saved by a program that is killed (saver.h), and
// what is to be found afterwards.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/killed/saver.h"
#include "tests/support/child_process.h"

namespace terrace {

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
                                        size_t call = 0, int error = 0,
                                        int parts = 1) {
    return {SAVER,
            directory,
            absl::StrCat(steps),
            absl::StrCat(save),
            absl::StrCat(call),
            absl::StrCat(error),
            absl::StrCat(parts)};
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
inline std::vector<std::string> CallsIn(
    const std::vector<std::string>& command) {
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

}  // namespace terrace
