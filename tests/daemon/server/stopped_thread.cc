#include "tests/daemon/server/stopped_thread.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
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

uintptr_t StoppedThread::at() const {
  user_regs_struct registers = {};
  iovec room = {&registers, sizeof(registers)};
  if (ptrace(PTRACE_GETREGSET, thread_, NT_PRSTATUS, &room) != 0) return 0;
#if defined(__x86_64__)
  return registers.rip;
#else
  return registers.pc;
#endif
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

namespace {

// Where that process has the first page of a library; 0: nowhere.
uintptr_t BaseOf(pid_t process, const std::string& library) {
  std::ifstream maps(absl::StrCat("/proc/", process, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    if (!absl::EndsWith(line, library)) continue;
    return std::stoull(line.substr(0, line.find('-')), nullptr, 16);
  }
  return 0;
}

}  // namespace

std::unique_ptr<StoppedThread> StopInAllocator(pid_t process, pid_t thread) {
  // What the exported functions of one object file call lies beside them.
  constexpr uintptr_t kBeside = 12 << 10;
  constexpr int kTries = 50'000;
  Dl_info library = {};
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  for (const char* const name : {"malloc", "free", "realloc", "calloc"}) {
    void* const function = dlsym(RTLD_DEFAULT, name);
    if (dladdr(function, &library) == 0) return nullptr;
    const auto at = reinterpret_cast<uintptr_t>(function);
    begin = std::min(begin, at);
    end = std::max(end, at);
  }
  const std::string file =
      std::filesystem::canonical(library.dli_fname).string();
  const uintptr_t base = BaseOf(process, file);
  if (base == 0) return nullptr;
  const auto own = reinterpret_cast<uintptr_t>(library.dli_fbase);
  for (int i = 0; i < kTries; ++i) {
    auto stopped = std::make_unique<StoppedThread>(thread);
    const uintptr_t at = stopped->at() - base + own;
    if (stopped->ok() && at >= begin - kBeside && at < end + kBeside) {
      return stopped;
    }
    // It gets on meanwhile, never as far as before.
    stopped.reset();
    usleep(static_cast<useconds_t>(i % 97));
  }
  return nullptr;
}

}  // namespace terrace
