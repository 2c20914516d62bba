#include "tests/support/child_process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Leaves the processor to the child before it is looked at again.
void Pause() { poll(nullptr, 0, 1); }

// In the child, between fork and exec: system calls only.
bool Restrict(const ChildOptions& options) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  // A shell's background jobs ignore it, and so do their children.
  if (signal(SIGINT, SIG_DFL) == SIG_ERR) return false;
  if (options.respect_permissions) {
    // Exec gives root only what is left in the bounding set. Others have
    // nothing to give up.
    for (const int right :
         {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER}) {
      if (geteuid() == 0 && prctl(PR_CAPBSET_DROP, right, 0, 0, 0) != 0) {
        return false;
      }
    }
  }
  if (options.largest_file_bytes > 0) {
    const auto bytes = static_cast<rlim_t>(options.largest_file_bytes);
    const rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  }
  return true;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const ChildOptions& options)
    : longest_seconds_(options.longest_seconds) {
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  int ends[2];
  TERRACE_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  errors_fd_ = memfd_create("standard error", MFD_CLOEXEC);
  TERRACE_CHECK(errors_fd_ >= 0);
  output_fd_ = ends[0];
  pid_ = fork();
  TERRACE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    if (!Restrict(options) || dup2(ends[1], STDOUT_FILENO) < 0 ||
        dup2(errors_fd_, STDERR_FILENO) < 0) {
      _exit(kNotStarted);
    }
    execv(arguments[0], arguments.data());
    _exit(kNotStarted);
  }
  close(ends[1]);
}

ChildProcess::~ChildProcess() {
  if (!ended_) {
    Kill(SIGKILL);
    Reap(/*block=*/true);
  }
  close(output_fd_);
  close(errors_fd_);
}

bool ChildProcess::running() {
  Reap(/*block=*/false);
  return !ended_;
}

bool ChildProcess::WaitForOutput(const std::string& text) {
  BeginWait();
  while (result_.output.find(text) == std::string::npos) {
    if (Late() || !ReadOutput(100)) return false;
  }
  return true;
}

bool ChildProcess::WaitUntil(const std::function<bool()>& condition) {
  BeginWait();
  while (!condition()) {
    if (Late() || !running()) return false;
    Pause();
  }
  return true;
}

void ChildProcess::Kill(int signal) {
  if (!ended_) kill(pid_, signal);
}

const ChildResult& ChildProcess::Wait() {
  BeginWait();
  while (ReadOutput(100)) Late();
  while (running()) {  // it closed its output and goes on
    Late();
    Pause();
  }
  char buffer[4096];
  lseek(errors_fd_, 0, SEEK_SET);
  result_.errors.clear();
  for (ssize_t n; (n = read(errors_fd_, buffer, sizeof buffer)) > 0;) {
    result_.errors.append(buffer, static_cast<size_t>(n));
  }
  if (was_late_) {
    result_.errors += absl::StrCat("(killed: the test waited for it for ",
                                   longest_seconds_, " seconds)\n");
  }
  return result_;
}

bool ChildProcess::ReadOutput(int timeout_ms) {
  pollfd readable = {output_fd_, POLLIN, 0};
  if (poll(&readable, 1, timeout_ms) <= 0) return true;
  char buffer[4096];
  const ssize_t n = read(output_fd_, buffer, sizeof buffer);
  if (n > 0) result_.output.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

void ChildProcess::Reap(bool block) {
  if (ended_) return;
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(pid_, &status, block ? 0 : WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped != pid_) return;
  ended_ = true;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
}

void ChildProcess::BeginWait() { deadline_ = Now() + longest_seconds_; }

bool ChildProcess::Late() {
  if (Now() < deadline_) return false;
  was_late_ |= !ended_;
  Kill(SIGKILL);
  return true;
}

}  // namespace terrace
