#include "tests/daemon/server/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace terrace {
std::vector<pid_t> ThreadsNamed(pid_t process, const std::string& name) {
  std::vector<pid_t> threads;
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const auto& each : std::filesystem::directory_iterator(tasks)) {
    std::string found;
    std::getline(std::ifstream(each.path() / "comm"), found);
    pid_t thread = 0;
    if (found == name &&
        absl::SimpleAtoi(each.path().filename().string(), &thread)) {
      threads.push_back(thread);
    }
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

StoppedThread::StoppedThread(pid_t thread) : thread_(thread) {
  if (thread_ == 0) return;
  if (ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) return;
  is_stopped_ = ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 &&
                waitpid(thread_, nullptr, __WALL) == thread_;
}

StoppedThread::StoppedThread(pid_t process, const std::string& name)
    : StoppedThread([&] {
        const std::vector<pid_t> threads = ThreadsNamed(process, name);
        return threads.empty() ? 0 : threads.front();
      }()) {}

void StoppedThread::AwaitEnd() {
  int how = 0;
  while (is_stopped_) {
    const bool is_told = waitpid(thread_, &how, __WALL) == thread_;
    is_stopped_ = is_told && !WIFEXITED(how) && !WIFSIGNALED(how);
  }
}

StoppedThread::~StoppedThread() {
  if (is_stopped_) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
}

}  // namespace terrace
