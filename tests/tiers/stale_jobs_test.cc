#include "tiers/disk/stale_jobs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/byte_units.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"
#include "tiers/disk/job_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "terrace-123-0123456789abcdef";

class StaleJobsTest : public testing::Test {
 protected:
  StaleJobsTest()
      : fd_(open(path_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  ~StaleJobsTest() override { close(fd_); }

  std::string Below(const std::string& name) const {
    return path_.path() + "/" + name;
  }
  // A directory with these files, as a job may have left it.
  void Leave(const std::string& name, const std::vector<std::string>& files,
             int64_t state_bytes = 6) const {
    fs::create_directory(Below(name));
    for (const std::string& file : files) {
      std::ofstream(Below(name + "/" + file)) << "theirs";
      if (file == "state") fs::resize_file(Below(name + "/state"), state_bytes);
    }
  }
  // How often there was more to do.
  static int RemoveAll(StaleJobs& stale) {
    int pieces = 0;
    while (stale.RemoveSome()) ++pieces;
    return pieces;
  }

  const TemporaryDirectory path_;
  const int fd_;
};

TEST_F(StaleJobsTest, WhateverAKillLeftIsRemoved) {
  const std::vector<std::vector<std::string>> kinds = {
      {}, {"lock"}, {"lock", "state"}};
  for (const std::string suffix : {"", ".stale"}) {
    for (const auto& files : kinds) {
      Leave(kName + suffix, files);
      StaleJobs stale(fd_);
      EXPECT_EQ(RemoveAll(stale), 0);
      EXPECT_TRUE(path_.empty()) << suffix << ", files: " << files.size();
    }
  }
}

TEST_F(StaleJobsTest, NoPieceIsMoreThanAGibibyte) {
  Leave(kName, {"lock", "state"}, 2 * kGiB + kGiB / 2);
  const std::string state = Below(std::string(kName) + ".stale/state");
  StaleJobs stale(fd_);
  EXPECT_TRUE(stale.RemoveSome());
  EXPECT_EQ(fs::file_size(state), kGiB + kGiB / 2);
  EXPECT_TRUE(stale.RemoveSome());
  EXPECT_EQ(fs::file_size(state), kGiB / 2);
  EXPECT_FALSE(stale.RemoveSome());
  EXPECT_TRUE(path_.empty());
}

TEST_F(StaleJobsTest, WhatOneLeavesUnfinishedTheNextOneGoesOnWith) {
  Leave(kName, {"lock", "state"}, 3 * kGiB);
  {
    StaleJobs first(fd_);
    EXPECT_TRUE(first.RemoveSome());
    // Held: not the second one's.
    StaleJobs second(fd_);
    EXPECT_FALSE(second.RemoveSome());
    first.Stop();
    EXPECT_FALSE(first.RemoveSome());
  }
  StaleJobs third(fd_);
  RemoveAll(third);
  EXPECT_TRUE(path_.empty());
}

TEST_F(StaleJobsTest, AFileWithAnotherNameKeepsItsBytes) {
  Leave(kName, {"lock", "state"}, 2 * kGiB);
  TemporaryDirectory elsewhere;
  const std::string kept = elsewhere.path() + "/kept";
  fs::create_hard_link(Below(std::string(kName) + "/state"), kept);
  StaleJobs stale(fd_);
  RemoveAll(stale);
  EXPECT_TRUE(path_.empty());
  EXPECT_EQ(fs::file_size(kept), 2 * kGiB);
}

TEST_F(StaleJobsTest, WhatCannotBeRemovedIsLeftAlone) {
  Leave(kName, {"lock", "state", "foreign"});
  StaleJobs stale(fd_);
  EXPECT_EQ(RemoveAll(stale), 0);
  EXPECT_TRUE(fs::exists(Below(std::string(kName) + ".stale/foreign")));
}

TEST_F(StaleJobsTest, WhoLacksRoomWaitsForWhatOthersRemove) {
  Leave(kName, {"lock", "state"}, 3 * kGiB);
  StaleJobs first(fd_);
  ASSERT_TRUE(first.RemoveSome());
  const std::string state = Below(std::string(kName) + ".stale/state");
  std::atomic<bool> waited = false;
  std::thread gets_on([&] {  // as the first one would, if it had enough
    for (int64_t bytes = kGiB; !waited; bytes ^= 1) {
      fs::resize_file(state, static_cast<uintmax_t>(bytes));
    }
  });
  StaleJobs second(fd_);
  EXPECT_TRUE(second.MakeRoom());
  waited = true;
  gets_on.join();
}

TEST_F(StaleJobsTest, WhoWaitsForOneThatIsKilledGoesOnWithIt) {
  Leave(kName, {"lock", "state"}, 3 * kGiB);
  StaleJobs first(fd_);
  ASSERT_TRUE(first.RemoveSome());
  // A start that tries a lock for the second time has waited once.
  const int looks = inotify_init1(IN_CLOEXEC);
  const std::string lock = Below(std::string(kName) + ".stale/lock");
  ASSERT_GE(inotify_add_watch(looks, lock.c_str(), IN_OPEN | IN_CLOSE), 0);
  std::thread ends([&first, looks] {
    for (int opens = 0; opens < 2;) {
      inotify_event event = {};
      if (read(looks, &event, sizeof(event)) != sizeof(event)) break;
      opens += (event.mask & IN_OPEN) != 0 ? 1 : 0;
    }
    first.Stop();
  });
  StaleJobs second(fd_);
  EXPECT_TRUE(second.MakeRoom());
  ends.join();
  close(looks);
  EXPECT_EQ(fs::file_size(Below(std::string(kName) + ".stale/state")), kGiB);
}

TEST_F(StaleJobsTest, WhereNothingIsRemovedThereWillBeNoRoom) {
  Leave("data", {"state"});
  const auto job = JobDirectory::Create(path_.path());
  ASSERT_TRUE(job.ok()) << job.status();
  StaleJobs stale(fd_);
  EXPECT_FALSE(stale.MakeRoom());
  EXPECT_TRUE(fs::exists(Below("data/state")));
}

// What no lock tells of is not being removed, however its bytes change.
TEST_F(StaleJobsTest, NobodyIsWaitedForBesideWhatCannotBeRemoved) {
  const std::string stale_name = std::string(kName) + ".stale";
  const std::string state = Below(stale_name + "/state");
  TemporaryDirectory elsewhere;
  elsewhere.Write("state", "theirs");
  for (const std::string kind : {"no lock", "a folder as its lock", "a link"}) {
    if (kind == "a link") {
      fs::create_directory_symlink(elsewhere.path(), Below(stale_name));
    } else {
      Leave(stale_name, {"state"});
      if (kind != "no lock") fs::create_directory(Below(stale_name + "/lock"));
    }
    std::atomic<bool> looked = false;
    std::thread changes([&] {
      for (int64_t bytes = kGiB; !looked; bytes ^= 1) {
        fs::resize_file(state, static_cast<uintmax_t>(bytes));
      }
    });
    StaleJobs stale(fd_);
    EXPECT_FALSE(stale.MakeRoom()) << kind;
    looked = true;
    changes.join();
    EXPECT_TRUE(fs::exists(state)) << kind;
    fs::remove_all(Below(stale_name));
  }
}

TEST_F(StaleJobsTest, WhatAKilledStartHadClaimedNoLivingChildOfItKeeps) {
  Leave(kName, {"lock", "state"}, 3 * kGiB);
  const ChildOfAKilledParent child([&](absl::FunctionRef<void()> leave) {
    StaleJobs stale(fd_);
    if (stale.RemoveSome()) leave();
  });
  ASSERT_TRUE(child.ok());
  StaleJobs next(fd_);
  RemoveAll(next);
  EXPECT_TRUE(path_.empty());
}

TEST_F(StaleJobsTest, AChildNeitherRemovesNorGivesUpWhatItsParentClaimed) {
  Leave(kName, {"lock", "state"}, 3 * kGiB);
  StaleJobs stale(fd_);
  ASSERT_TRUE(stale.RemoveSome());
  EXPECT_TRUE(InChild([&] {
    const bool removes = stale.RemoveSome() || stale.MakeRoom();
    stale.Stop();
    StaleJobs others(fd_);
    return !removes && !others.RemoveSome() && !path_.empty();
  }));
  RemoveAll(stale);
  EXPECT_TRUE(path_.empty());
}

// Runs `body` in a child that is killed as it enters its `call`-th system
// call. False: it ended before, or could not be traced.
template <typename Body>
bool KilledAt(int call, const Body& body, bool* traced) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) std::_Exit(1);
    raise(SIGSTOP);
    body();
    std::_Exit(0);
  }
  int status = 0;
  *traced = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
  for (int stops = 0; WIFSTOPPED(status); ++stops) {
    if (stops == 2 * call) {  // before and after each call
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return true;
    }
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    if (waitpid(child, &status, 0) != child) break;
  }
  return false;
}

TEST_F(StaleJobsTest, AStartKilledAtAnySystemCallLeavesNothingForEver) {
  int kills = 0;
  for (bool killed = true; killed; kills += killed ? 1 : 0) {
    Leave(kName, {"lock", "state"}, kGiB + 1);
    bool traced = false;
    killed = KilledAt(
        kills,
        [this] {
          const auto job = JobDirectory::Create(path_.path());
          while (job.ok() && (*job)->Reclaim()) {
          }
        },
        &traced);
    if (!traced) GTEST_SKIP() << "no process may be traced here";
    StaleJobs stale(fd_);
    RemoveAll(stale);
    ASSERT_TRUE(path_.empty()) << "killed at call " << kills;
  }
  EXPECT_GT(kills, 20);
}

}  // namespace
}  // namespace terrace
