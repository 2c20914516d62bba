#include "base/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/open_descriptors.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

class ProcessTest : public testing::Test {
 protected:
  OwnDescriptor Open() {
    return OwnDescriptor::Open(path_, O_RDWR | O_CLOEXEC);
  }
  // Whether another open file gets the lock, once the child has begun to run.
  bool IsSoonFree() {
    for (int tries = 0; tries < 500 && !IsFree(); ++tries) usleep(10'000);
    return IsFree();
  }
  bool IsFree() {
    const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    const bool had = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return had;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.Write("file", "text");
};

TEST_F(ProcessTest, IsCurrentInNoChildNorInTheirs) {
  const Process process;
  EXPECT_TRUE(process.IsCurrent());
  EXPECT_EQ(process.id(), getpid());
  EXPECT_TRUE(InChild([&] {
    const Process child;
    return !process.IsCurrent() && child.IsCurrent() &&
           child.id() == getpid() && InChild([&] {
             return !process.IsCurrent() && !child.IsCurrent() &&
                    Process().IsCurrent();
           });
  }));
  EXPECT_TRUE(process.IsCurrent());
}

TEST_F(ProcessTest, AChildHasNoneOfItsDescriptors) {
  const OwnDescriptor own = Open();
  const int fd = own.get();
  const int shared = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(InChild([&] {
    return !IsOpen(fd) && own.get() == -1 && !own.ok() && IsOpen(shared);
  }));
  EXPECT_TRUE(IsOpen(fd));
  close(shared);
}

TEST_F(ProcessTest, AChildsOwnAreNotItsParents) {
  OwnDescriptor own = Open();
  const int fd = own.get();
  EXPECT_TRUE(InChild([&] {
    OwnDescriptor mine = Open();  // of the same number
    const bool is_same = mine.get() == fd;
    own.Close();
    const bool is_open = IsOpen(fd);
    own = std::move(mine);
    return is_same && is_open && own.get() == fd &&
           InChild([&] { return !IsOpen(fd); }) && IsOpen(fd);
  }));
}

TEST_F(ProcessTest, AChildNeitherKeepsNorGivesUpALock) {
  OwnDescriptor own = Open();
  ASSERT_EQ(flock(own.get(), LOCK_EX | LOCK_NB), 0);
  int gate[2];
  ASSERT_EQ(pipe2(gate, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    own.Close();
    char go = 0;
    [[maybe_unused]] const ssize_t got = read(gate[0], &go, 1);
    _exit(0);
  }
  EXPECT_FALSE(IsFree());
  own.Close();
  EXPECT_TRUE(IsSoonFree());  // while the child lives
  EXPECT_EQ(write(gate[1], "g", 1), 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(gate[0]);
  close(gate[1]);
}

TEST_F(ProcessTest, WhatIsOwnedElsewhereIsClosedInChildrenToo) {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ClosedInChildren entry(fd);
  ClosedInChildren moved = std::move(entry);
  EXPECT_TRUE(InChild([&] { return !IsOpen(fd); }));
  moved.Forget();
  EXPECT_TRUE(InChild([&] { return IsOpen(fd); }));
  close(fd);
}

TEST_F(ProcessTest, ThereIsRoomForMany) {
  std::vector<OwnDescriptor> all;
  for (int i = 0; i < 700; ++i) {
    all.push_back(Open());
    ASSERT_TRUE(all.back().ok()) << i;
  }
  all.erase(all.begin() + 100, all.begin() + 400);
  for (int i = 0; i < 300; ++i) all.push_back(Open());
  EXPECT_EQ(CountOpen(path_), 700);
  EXPECT_TRUE(InChild([&] { return CountOpen(path_) == 0; }));
  all.clear();
  EXPECT_EQ(CountOpen(path_), 0);
}

TEST_F(ProcessTest, AFailedOpenSaysWhy) {
  errno = 0;
  const OwnDescriptor none =
      OwnDescriptor::Open(path_ + "/none", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(none.ok());
}

TEST_F(ProcessTest, AChildOfAnyMomentHasNone) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) Open().Close();
    });
  }
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    EXPECT_TRUE(InChild([&] { return CountOpen(path_) == 0; })) << round;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProcessTest, AForkDoesNotWaitForEver) {
  std::atomic<bool> is_paused = false;
  std::atomic<bool> stop = false;
  std::thread hanging([&] {
    const ForkPause pause;
    is_paused = true;
    while (!stop) std::this_thread::yield();
  });
  while (!is_paused) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  // Whose own fork waits for nobody.
  EXPECT_TRUE(
      InChild([] { return InChild([] { return Process().IsCurrent(); }); }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(stop);
  stop = true;
  hanging.join();
}

TEST_F(ProcessTest, AChildMadeWithinAPauseGoesOn) {
  const ForkPause pause;
  EXPECT_TRUE(InChild([&] {
    { const ForkPause another; }
    return Open().ok();
  }));
}

}  // namespace
}  // namespace terrace
