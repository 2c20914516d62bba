#include "tiers/disk/job_directory.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<JobDirectory> MustCreate(const std::string& path) {
  absl::StatusOr<std::unique_ptr<JobDirectory>> job =
      JobDirectory::Create(path);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *std::move(job) : nullptr;
}

// One that has removed what was left on the path.
std::unique_ptr<JobDirectory> MustReclaim(const std::string& path) {
  std::unique_ptr<JobDirectory> job = MustCreate(path);
  while (job != nullptr && job->Reclaim()) {
  }
  return job;
}

void WriteState(const JobDirectory& job, const std::string& text) {
  std::ofstream(job.state_file()) << text;
}

std::string ReadState(const std::string& file) {
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  return text;
}

// A child process that holds a job on `path` until it is killed.
class OtherProcess {
 public:
  explicit OtherProcess(const std::string& path) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      const auto job = JobDirectory::Create(path);
      char name[4096] = {};
      if (job.ok()) {
        WriteState(**job, "theirs");
        (*job)->state_file().copy(name, sizeof(name) - 1);
      }
      if (write(ready[1], name, sizeof(name)) < 0) _exit(1);
      while (true) pause();
    }
    close(ready[1]);
    char name[4096] = {};
    EXPECT_GT(read(ready[0], name, sizeof(name)), 0);
    close(ready[0]);
    state_file_ = name;
  }
  ~OtherProcess() { Kill(); }

  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  const std::string& state_file() const { return state_file_; }

 private:
  pid_t child_ = -1;
  std::string state_file_;
};

TEST(JobDirectoryTest, IsMadeAndRemoved) {
  TemporaryDirectory path;
  {
    const auto job = MustCreate(path.path());
    ASSERT_NE(job, nullptr);
    WriteState(*job, "ours");
    EXPECT_EQ(path.Entries().size(), 1u);
    struct stat status;
    ASSERT_EQ(fstat(job->fd(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
  }
  EXPECT_TRUE(path.Entries().empty());
}

TEST(JobDirectoryTest, RemoveWorksOnceAndLeavesNothing) {
  TemporaryDirectory path;
  const auto job = MustCreate(path.path());
  ASSERT_NE(job, nullptr);
  EXPECT_TRUE(job->Remove().ok());
  EXPECT_TRUE(path.Entries().empty());
  EXPECT_TRUE(job->Remove().ok());
}

TEST(JobDirectoryTest, RemoveReportsWhatItCannot) {
  TemporaryDirectory path;
  const auto job = MustCreate(path.path());
  ASSERT_NE(job, nullptr);
  const fs::path foreign = fs::path(job->state_file()).parent_path() / "x";
  std::ofstream(foreign) << "not ours";
  const absl::Status status = job->Remove();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find("ENOTEMPTY"), std::string::npos) << status;
  EXPECT_TRUE(fs::exists(foreign));
}

TEST(JobDirectoryTest, TwoJobsOfOneProcessDoNotMeet) {
  TemporaryDirectory path;
  const auto first = MustCreate(path.path());
  WriteState(*first, "first");
  {
    const auto second = MustCreate(path.path());
    WriteState(*second, "second");
    EXPECT_NE(first->state_file(), second->state_file());
    EXPECT_EQ(path.Entries().size(), 2u);
  }
  EXPECT_EQ(ReadState(first->state_file()), "first");
  EXPECT_EQ(path.Entries().size(), 1u);
}

TEST(JobDirectoryTest, ManyThreadsOnOnePathDoNotMeet) {
  TemporaryDirectory path;
  constexpr int kThreads = 8;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        auto job = JobDirectory::Create(path.path());
        if (!job.ok()) {
          ++failures;
          continue;
        }
        const std::string text = std::to_string(t * 1000 + i);
        WriteState(**job, text);
        (*job)->Reclaim();  // as if it were a start's first look
        if (ReadState((*job)->state_file()) != text) ++failures;
        if (!(*job)->Remove().ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_TRUE(path.Entries().empty());
}

TEST(JobDirectoryTest, ALiveJobOfAnotherProcessIsNotTouched) {
  TemporaryDirectory path;
  OtherProcess other(path.path());
  ASSERT_FALSE(other.state_file().empty());
  const auto job = MustReclaim(path.path());
  EXPECT_EQ(ReadState(other.state_file()), "theirs");
  EXPECT_EQ(path.Entries().size(), 2u);
}

TEST(JobDirectoryTest, WhatAKilledJobLeftIsReclaimed) {
  TemporaryDirectory path;
  OtherProcess other(path.path());
  other.Kill();
  ASSERT_EQ(ReadState(other.state_file()), "theirs") << "kill -9 leaves it";
  const auto job = MustReclaim(path.path());
  EXPECT_FALSE(fs::exists(fs::path(other.state_file()).parent_path()));
  EXPECT_EQ(path.Entries().size(), 1u);
}

// As a checkpoint that is saved into the path has it for minutes.
TEST(JobDirectoryTest, ALockOnThePathItselfIsNobodysBusiness) {
  TemporaryDirectory path;
  const int fd = open(path.path().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_NE(MustReclaim(path.path()), nullptr);
  close(fd);
}

TEST(JobDirectoryTest, OneThatDiedBeforeItsLockIsReclaimed) {
  TemporaryDirectory path;
  fs::create_directory(path.path() + "/terrace-123-0123456789abcdef");
  const auto job = MustReclaim(path.path());
  EXPECT_EQ(path.Entries().size(), 1u);
}

TEST(JobDirectoryTest, OnlyJobNamesAreReclaimed) {
  TemporaryDirectory path;
  const std::vector<std::string> others = {"terrace-",
                                           "terrace-1",
                                           "terrace-x-0123456789abcdef",
                                           "terrace-1-0123",
                                           "terrace-1-0123456789abcdeg",
                                           "terrace-1-0123456789abcdef.old",
                                           "data"};
  for (const std::string& name : others) {
    fs::create_directory(path.path() + "/" + name);
    std::ofstream(path.path() + "/" + name + "/state") << "keep";
  }
  MustReclaim(path.path());
  for (const std::string& name : others) {
    EXPECT_TRUE(fs::exists(path.path() + "/" + name + "/state")) << name;
  }
}

TEST(JobDirectoryTest, ALinkIsNotFollowed) {
  TemporaryDirectory path;
  TemporaryDirectory elsewhere;
  std::ofstream(elsewhere.path() + "/state") << "keep";
  fs::create_symlink(elsewhere.path(),
                     path.path() + "/terrace-1-0123456789abcdef");
  MustReclaim(path.path());
  EXPECT_EQ(ReadState(elsewhere.path() + "/state"), "keep");
}

// A worker forked by the training program runs destructors, or dies, or stays.
TEST(JobDirectoryTest, AForkedChildDropsItHarmlessly) {
  TemporaryDirectory path;
  auto job = MustCreate(path.path());
  WriteState(*job, "ours");
  EXPECT_TRUE(InChild([&] {
    const bool refused = !job->IsOwner() && job->Remove().ok();
    job.reset();
    return refused;
  }));
  EXPECT_EQ(ReadState(job->state_file()), "ours");
  // The lock is still held: another job leaves it alone.
  const auto other = MustReclaim(path.path());
  EXPECT_EQ(ReadState(job->state_file()), "ours");
}

TEST(JobDirectoryTest, ItsFilesDoNotPassToOtherPrograms) {
  TemporaryDirectory path;
  const auto job = MustCreate(path.path());
  const std::string real_path = fs::canonical(path.path());
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (target.string().rfind(real_path, 0) != 0) continue;
    ++found;
    const int fd = std::stoi(entry.path().filename());
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << target;
  }
  EXPECT_EQ(found, 3);  // the path, the directory, the lock
}

TEST(JobDirectoryTest, AMissingPathIsNotFound) {
  const std::string missing = testing::TempDir() + "/terrace-no-such-place";
  const absl::Status status = JobDirectory::Create(missing).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.ToString().find(missing), std::string::npos);
  EXPECT_NE(status.ToString().find("ENOENT"), std::string::npos);
}

TEST(JobDirectoryTest, AFileIsNoPath) {
  TemporaryDirectory path;
  const std::string file = path.path() + "/file";
  std::ofstream(file) << "x";
  for (const std::string& name : {file, file + "/below"}) {
    const absl::Status status = JobDirectory::Create(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST(JobDirectoryTest, AnUnwritablePathIsPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  TemporaryDirectory path;
  ASSERT_EQ(chmod(path.path().c_str(), 0755), 0);
  EXPECT_TRUE(InChild([&] {
    return setresuid(kNobody, kNobody, kNobody) == 0 &&
           absl::IsPermissionDenied(JobDirectory::Create(path.path()).status());
  }));
  EXPECT_TRUE(path.Entries().empty());
}

// A look for its own lock that fails does not tell that others took it.
TEST(JobDirectoryTest, AnErrorOfALookIsToldAndLeavesNothing) {
  TemporaryDirectory path;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {std::size(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(77);
    }
    const std::string told =
        JobDirectory::Create(path.path()).status().ToString();
    const bool tells = told.find("EIO") != std::string::npos &&
                       told.find(path.path()) != std::string::npos;
    _exit(tells ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filter here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(path.Entries().empty());
}

TEST(JobDirectoryTest, AReadOnlyFileSystemIsPermissionDenied) {
  TemporaryDirectory path;
  if (!path.MountTmpfs("size=1m", MS_RDONLY)) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const absl::Status status = JobDirectory::Create(path.path()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_NE(status.ToString().find("EROFS"), std::string::npos) << status;
}

}  // namespace
}  // namespace terrace
