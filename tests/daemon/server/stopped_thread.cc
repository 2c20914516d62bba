#include "tests/daemon/server/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

pid_t ThreadNamed(pid_t process, const std::string& name) {
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const auto& each : std::filesystem::directory_iterator(tasks)) {
    std::string found;
    std::getline(std::ifstream(each.path() / "comm"), found);
    pid_t thread = 0;
    if (found == name &&
        absl::SimpleAtoi(each.path().filename().string(), &thread)) {
      return thread;
    }
  }
  return 0;
}

}  // namespace

StoppedThread::StoppedThread(pid_t process, const std::string& name)
    : thread_(ThreadNamed(process, name)) {
  if (thread_ == 0) return;
  if (ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) return;
  is_stopped_ = ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 &&
                waitpid(thread_, nullptr, __WALL) == thread_;
}

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
