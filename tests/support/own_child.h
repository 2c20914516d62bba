// A child of this process: of what it has of its parent, or in which a test
// gives up what it cannot get back: a user, a system call, a limit.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "absl/functional/function_ref.h"

namespace terrace {

// Whether a child of a process with threads may start some of its own. The
// thread sanitiser ends one that does.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kChildMayStartThreads = false;
#else
inline constexpr bool kChildMayStartThreads = true;
#endif

// What waitpid says of a child that runs `body`, which ends with std::_Exit, or
// _exit; with 1 if it returns; an exception aborts it. -1: there was no child.
inline int StatusOfChild(absl::FunctionRef<void()> body) {
  const pid_t child = fork();
  if (child == 0) {
    // Else the child would go on with the tests of its parent.
    [&body]() noexcept { body(); }();
    std::_Exit(1);
  }
  int status = 0;
  return child < 0 || waitpid(child, &status, 0) != child ? -1 : status;
}

// The exit code of such a child. -1: there was none, or a signal ended it.
inline int ExitCodeInChild(absl::FunctionRef<void()> body) {
  const int status = StatusOfChild(body);
  return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Whether a child in which `run` is true ends by itself, content.
inline bool InChild(absl::FunctionRef<bool()> run) {
  const int status = StatusOfChild([run] {
    alarm(20);  // a child that hangs is killed, and told apart
    _exit(run() ? 0 : 1);
  });
  EXPECT_GE(status, 0) << "no child";
  EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
  return status == 0;
}

// A child that lives, as a worker that loads data does, until this ends.
class LivingChild {
 public:
  // Which runs `body` first.
  explicit LivingChild(absl::FunctionRef<void()> body = [] {}) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      alarm(60);  // one that is forgotten
      body();
      if (write(ready[1], "r", 1) != 1) _exit(1);
      close(ready[0]);
      close(ready[1]);
      while (true) pause();
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "no child, or it failed";
    close(ready[0]);
  }
  ~LivingChild() {
    if (child_ <= 0) return;
    EXPECT_EQ(waitpid(child_, nullptr, WNOHANG), 0) << "it has ended";
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  LivingChild(const LivingChild&) = delete;
  LivingChild& operator=(const LivingChild&) = delete;

  pid_t pid() const { return child_; }

 private:
  pid_t child_ = -1;
};

// The child of a process that is killed, as a worker that outlives its job.
class ChildOfAKilledParent {
 public:
  // `leave` makes the child and ends the parent: what `body` has then, the
  // parent had. A body that returns has failed.
  explicit ChildOfAKilledParent(
      absl::FunctionRef<void(absl::FunctionRef<void()> leave)> body) {
    int gate[2];
    EXPECT_EQ(pipe2(gate, O_CLOEXEC), 0);
    const pid_t parent = fork();
    if (parent == 0) {
      body([&gate] {
        if (fork() == 0) {
          alarm(60);
          const pid_t child = getpid();
          if (write(gate[1], &child, sizeof(child)) != sizeof(child)) _exit(1);
          close(gate[1]);
          while (true) pause();
        }
        raise(SIGKILL);
      });
      _exit(1);
    }
    close(gate[1]);
    const bool is_told = read(gate[0], &child_, sizeof(child_)) ==
                         static_cast<ssize_t>(sizeof(child_));
    close(gate[0]);
    ok_ = waitpid(parent, nullptr, 0) == parent && is_told;
  }
  ~ChildOfAKilledParent() {
    if (!ok_) return;
    EXPECT_EQ(kill(child_, SIGKILL), 0);
  }
  ChildOfAKilledParent(const ChildOfAKilledParent&) = delete;
  ChildOfAKilledParent& operator=(const ChildOfAKilledParent&) = delete;

  // The parent got as far as that, and is gone.
  bool ok() const { return ok_; }

 private:
  pid_t child_ = -1;
  bool ok_ = false;
};

constexpr uid_t kNobody = 65534;

// Makes this process an ordinary user's, with so many bytes of memory to lock:
// root is exempt from that limit. False: not here, or not any more.
inline bool BecomeAUserWhoMayLock(int64_t bytes) {
  const auto most = static_cast<rlim_t>(bytes);
  const rlimit limit = {most, most};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  return geteuid() != 0 || (setgid(kNobody) == 0 && setuid(kNobody) == 0);
}

}  // namespace terrace
