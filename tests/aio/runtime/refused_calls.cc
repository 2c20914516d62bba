#include "tests/aio/runtime/refused_calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace terrace {
namespace {

// Of the kernel's structs, which may be larger than the headers'.
constexpr size_t kNotificationBytes = 1024;

// The descriptor of a listener, or 0 without; -1: refused.
int Install(std::vector<sock_filter> filter, unsigned flags) {
  const sock_fprog program = {static_cast<unsigned short>(filter.size()),
                              filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}

// Of the part of an argument that tells values of 32 bits apart.
constexpr unsigned kOpcodeAt = offsetof(seccomp_data, args[1]);

}  // namespace

bool RefuseCall(const RefusedCall& refused) {
  const auto number = static_cast<unsigned>(refused.number);
  const auto opcode = static_cast<unsigned>(refused.opcode);
  const auto error = SECCOMP_RET_ERRNO | static_cast<unsigned>(refused.error);
  const bool any = refused.opcode == RefusedCall::kAnyOpcode;
  return Install(
             {
                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOpcodeAt),
                 BPF_JUMP(BPF_JMP | (any ? BPF_JGE : BPF_JEQ) | BPF_K,
                          any ? 0 : opcode, 0, 1),
                 BPF_STMT(BPF_RET | BPF_K, error),
                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
             },
             SECCOMP_FILTER_FLAG_TSYNC) == 0;
}

bool CountedRefusal::Begin() {
  // It is started before the filter, and so makes its calls unseen.
  auto* const listener = new std::atomic<int>(0);
  std::thread([this, listener] {
    while (listener->load() == 0) std::this_thread::yield();
    if (listener->load() > 0) Answer(listener->load());
  }).detach();
  const int made = Install(
      {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, __NR_io_uring_setup, 0, 2),
          BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, __NR_io_uring_register, 1, 0),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      },
      SECCOMP_FILTER_FLAG_NEW_LISTENER);
  listener->store(made);
  return made > 0;
}

void CountedRefusal::Answer(int listener) {
  alignas(8) char asked_bytes[kNotificationBytes];
  alignas(8) char answer_bytes[kNotificationBytes];
  auto* const asked = reinterpret_cast<seccomp_notif*>(asked_bytes);
  auto* const answer = reinterpret_cast<seccomp_notif_resp*>(answer_bytes);
  for (int64_t call = 1;; ++call) {
    do {
      std::memset(asked_bytes, 0, sizeof(asked_bytes));
    } while (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, asked) != 0);
    std::memset(answer_bytes, 0, sizeof(answer_bytes));
    answer->id = asked->id;
    if (call >= first_ && call - first_ < times_) {
      answer->error = -error_;
      ++refused_;
    } else {
      answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    }
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
  }
}

}  // namespace terrace
