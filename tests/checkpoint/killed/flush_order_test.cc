// What a power loss takes is what was not flushed, so the order of a save's
// calls is what counts, and what it does where a flush fails or was never made.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
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

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::ResultOf;
using testing::SizeIs;

// Of the files of a save, the lock's among them.
bool IsList(const std::string& file) { return absl::EndsWith(file, ".lock"); }

class FlushOrder : public KilledSave {
 protected:
  std::string folder() const { return NameOf(directory_.path()); }
  static std::string NameOf(const std::string& path) {
    return path.substr(path.rfind('/') + 1);
  }
  void Train(int64_t steps) {
    const ChildResult result =
        ChildProcess(Saver(directory_.path(), steps)).Wait();
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  // The number of the call that flushes the rename of the save after step 2.
  size_t LastFlush(int parts) {
    TemporaryDirectory other;
    const auto calls = CallsIn(Saver(other.path(), 2, 2, 0, 0, parts));
    const auto rename =
        std::find(calls.begin(), calls.end(), "rename checkpoint.json");
    const auto flush = std::find(rename, calls.end(),
                                 absl::StrCat("fsync ", NameOf(other.path())));
    EXPECT_TRUE(flush != calls.end());
    return static_cast<size_t>(flush - calls.begin()) + 1;
  }

  TemporaryDirectory directory_;
};

TEST_F(FlushOrder, FlushesBeforeItNamesAndNamesBeforeItRemoves) {
  const auto calls = CallsIn(Saver(directory_.path(), 2, 2));
  std::set<std::string> unflushed, unflushed_names, created;
  bool renamed = false;
  for (const std::string& call : calls) {
    const std::string name = call.substr(0, call.find(' '));
    const std::string file = call.substr(call.find(' ') + 1);
    SCOPED_TRACE(call);
    if (name == "create") {
      EXPECT_FALSE(renamed);
      if (!IsList(file)) {
        created.insert(file);
        EXPECT_THAT(unflushed, Not(Contains(ResultOf(IsList, true))));
        EXPECT_THAT(unflushed_names, Not(Contains(ResultOf(IsList, true))));
      }
      unflushed_names.insert(file);
    } else if (name == "pwrite" || name == "fallocate") {
      EXPECT_EQ(created.count(file), IsList(file) ? 0u : 1u)
          << "an old file is written to";
      unflushed.insert(file);
    } else if (name == "fsync" && file == folder()) {
      unflushed_names.clear();
    } else if (name == "fsync") {
      unflushed.erase(file);
    } else if (name == "rename") {
      EXPECT_EQ(file, "checkpoint.json");
      EXPECT_TRUE(unflushed.empty()) << *unflushed.begin();
      EXPECT_TRUE(unflushed_names.empty()) << *unflushed_names.begin();
      renamed = true;
      unflushed_names.insert(file);
    } else if (name == "unlink" && !IsList(file)) {
      EXPECT_TRUE(renamed);
      EXPECT_TRUE(unflushed_names.empty()) << "the rename may be lost";
      EXPECT_EQ(created.count(file), 0u);
    }
  }
  EXPECT_TRUE(renamed);
  EXPECT_THAT(created, SizeIs(kSaverFiles));
}

struct FlushOrderOf : FlushOrder, testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, FlushOrderOf, testing::Values(1, 2));

TEST_P(FlushOrderOf, WhoseLastFlushFailsRemovesNothing) {
  Train(1);
  const auto old = directory_.Entries();
  const ChildResult result =
      ChildProcess(Saver(directory_.path(), 2, 2, LastFlush(GetParam()), EIO,
                         GetParam()))
          .Wait();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.errors, HasSubstr("EIO"));
  EXPECT_THAT(result.errors, HasSubstr(directory_.path()));
  EXPECT_THAT(directory_.Entries(), IsSupersetOf(old));
  EXPECT_EQ(ExpectExact(directory_.path()), 2);
  // As after a power loss that took the rename: the old one is whole.
  ExpectGoesOn(directory_.path(), 2, 3);
  EXPECT_THAT(directory_.Entries(), SizeIs(kSaverFiles));
}

TEST_P(FlushOrderOf, KilledBeforeItsLastFlushIsFlushedByTheNext) {
  Train(1);
  const auto old = directory_.Entries();
  const size_t last = LastFlush(GetParam());
  const ChildResult killed =
      ChildProcess(Saver(directory_.path(), 2, 2, last, 0, GetParam())).Wait();
  ASSERT_EQ(killed.signal, SIGKILL) << killed.errors;
  const auto left = directory_.Entries();
  ASSERT_THAT(left, IsSupersetOf(old));
  ASSERT_EQ(ExpectExact(directory_.path()), 2);

  // Where that flush fails nothing is removed, again and again.
  std::vector<std::string> calls;
  {
    TemporaryDirectory copy;
    std::filesystem::copy(directory_.path(), copy.path());
    calls = CallsIn(Saver(copy.path(), 3, 3, 0, 0, GetParam()));
    for (std::string& call : calls) {
      if (call == "fsync " + NameOf(copy.path())) call = "fsync";
    }
  }
  const auto flush = std::find(calls.begin(), calls.end(), "fsync");
  const auto removed =
      std::find_if(calls.begin(), calls.end(), [&](const std::string& call) {
        return absl::StartsWith(call, "unlink ") &&
               std::find(old.begin(), old.end(), call.substr(7)) != old.end();
      });
  EXPECT_LT(flush - calls.begin(), removed - calls.begin());
  for (int i = 0; i < 2; ++i) {
    const ChildResult failed =
        ChildProcess(Saver(directory_.path(), 3, 3,
                           static_cast<size_t>(flush - calls.begin()) + 1, EIO,
                           GetParam()))
            .Wait();
    EXPECT_EQ(failed.exit_code, 3) << failed.errors;
    EXPECT_THAT(directory_.Entries(), IsSupersetOf(old));
    EXPECT_EQ(ExpectExact(directory_.path()), 2);
  }
  ExpectGoesOn(directory_.path(), 2, 3);
  EXPECT_THAT(directory_.Entries(), SizeIs(kSaverFiles));
}

// Killed between the making of the folder and the flush of its name, or made by
// others: it may be gone after a power loss, with a checkpoint in it.
TEST_F(FlushOrder, OfAFirstSaveFlushesTheNameOfTheFolder) {
  const auto calls = CallsIn(Saver(directory_.path(), 1, 1));
  const std::string parent =
      directory_.path().substr(0, directory_.path().rfind('/'));
  const std::string real = std::filesystem::canonical(parent).string();
  EXPECT_THAT(calls, Contains("fsync " + NameOf(real)));
}

// With files beside it that no save listed.
TEST_P(FlushOrderOf, AFirstSaveThatIsKilledLeavesOnlyWhatItListed) {
  constexpr char kForeign[] = "parameters-0123456789abcdef.safetensors";
  std::vector<std::string> calls;
  {
    TemporaryDirectory other;
    calls = CallsIn(Saver(other.path(), 1, 1, 0, 0, GetParam()));
  }
  for (size_t call = 1; call <= calls.size(); ++call) {
    if (absl::StartsWith(calls[call - 1], "pwrite") && call % 13 != 0) continue;
    SCOPED_TRACE(absl::StrCat("call ", call, ": ", calls[call - 1]));
    TemporaryDirectory directory;
    ChildProcess(Saver(directory.path(), 1, 1, call, 0, GetParam())).Wait();
    if (ExpectExact(directory.path()) == 1) continue;
    directory.Write(kForeign, "theirs");
    const ChildResult refused =
        ChildProcess(Saver(directory.path(), 1, 0, 0, 0, GetParam())).Wait();
    EXPECT_EQ(refused.exit_code, 3);
    EXPECT_THAT(refused.errors, HasSubstr(kForeign));
    EXPECT_THAT(directory.Entries(), testing::ElementsAre(kForeign));
    std::filesystem::remove(directory.path() + "/" + kForeign);
    ExpectGoesOn(directory.path(), 0, 1);
    EXPECT_THAT(directory.Entries(), SizeIs(kSaverFiles));
  }
}

}  // namespace
}  // namespace terrace
