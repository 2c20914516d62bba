#include "tests/support/fork_at_call.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kPatience(20);

// Of the kernel's structs, which may be larger than the headers'.
constexpr size_t kNotificationBytes = 1024;

// That change nothing which a child could have.
constexpr unsigned kUncounted[] = {
    SYS_futex,        SYS_nanosleep,   SYS_clock_nanosleep, SYS_clock_gettime,
    SYS_gettimeofday, SYS_sched_yield, SYS_rt_sigprocmask,  SYS_rt_sigreturn,
    SYS_rt_sigaction, SYS_getpid,      SYS_gettid,          SYS_getrandom,
    SYS_brk,          SYS_rseq,        SYS_set_robust_list, SYS_exit,
    SYS_exit_group,   SYS_wait4,       SYS_restart_syscall, SYS_tgkill,
};

// The descriptor of a listener to this thread's calls and to those of threads
// that it starts; -1: refused.
int InstallFilter() {
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  size_t left = std::size(kUncounted);
  for (const unsigned call : kUncounted) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call,
                              static_cast<uint8_t>(left--), 0));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()),
                              filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                  SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

}  // namespace

ForkAtCall& ForkAtCall::OfThisProcess() {
  static ForkAtCall& forks = *new ForkAtCall;
  return forks;
}

// Both threads are there before the filter.
ForkAtCall::ForkAtCall() {
  std::thread([this] { Listen(); }).detach();
  std::thread([this] { MakeChildren(); }).detach();
  const int listener = InstallFilter();
  const std::lock_guard lock(mutex_);
  listener_ = listener;
  changed_.notify_all();
}

void ForkAtCall::Arm(int64_t call, std::function<int()> child) {
  std::fflush(nullptr);  // what is buffered is not the child's to print
  const std::lock_guard lock(mutex_);
  is_armed_ = true;
  call_ = call;
  made_ = {};
  run_ = std::move(child);
}

ForkAtCall::Made ForkAtCall::Disarm() {
  std::unique_lock lock(mutex_);
  is_armed_ = false;
  changed_.wait(lock, [this] { return !is_due_; });
  return made_;
}

void ForkAtCall::Listen() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return listener_ != 0; });
  }
  alignas(8) char asked_bytes[kNotificationBytes];
  alignas(8) char answer_bytes[kNotificationBytes];
  auto* const asked = reinterpret_cast<seccomp_notif*>(asked_bytes);
  auto* const answer = reinterpret_cast<seccomp_notif_resp*>(answer_bytes);
  while (ok()) {
    std::memset(asked_bytes, 0, sizeof(asked_bytes));
    if (ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, asked) != 0) continue;
    AwaitChild();
    std::memset(answer_bytes, 0, sizeof(answer_bytes));
    answer->id = asked->id;
    answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, answer);
  }
}

// If this is the call.
void ForkAtCall::AwaitChild() {
  std::unique_lock lock(mutex_);
  if (!is_armed_ || ++made_.calls != call_) return;
  is_due_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, kPatience, [this] { return !is_due_; });
}

void ForkAtCall::MakeChildren() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_due_; });
    const std::function<int()> run = run_;
    lock.unlock();
    const pid_t child = fork();
    if (child == 0) {
      close(listener_);
      std::exit(run());
    }
    lock.lock();
    made_.child = child;
    is_due_ = false;
    changed_.notify_all();
  }
}

}  // namespace terrace
