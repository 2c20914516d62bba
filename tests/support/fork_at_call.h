// Makes a child of this process at a chosen system call: in the middle of what
// its threads do, as a thread of a program may that starts a worker.
//
//   ForkAtCall& forks = ForkAtCall::OfThisProcess();  // before those threads
//   if (!forks.ok()) GTEST_SKIP() << "no filter of system calls here";
//   forks.Arm(17, [] { return 0; });                  // runs in the child
//   ...
//   const ForkAtCall::Made made = forks.Disarm();
//
// Counted are the calls of the thread that asked first, and of all that it
// starts from then on, but for those that only wait or look at the time. The
// thread whose call it is stops before it, until the child is there, or for 20
// ms: fork() itself may wait for what that thread holds.
//
// By a filter of seccomp's, which stays until the process ends. A child is made
// by a thread without it, and makes its calls unseen.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace terrace {

class ForkAtCall {
 public:
  struct Made {
    int64_t calls = 0;  // that were counted
    pid_t child = -1;   // -1: there were fewer than that. To be waited for.
  };

  // Lives for ever.
  static ForkAtCall& OfThisProcess();

  // False: the kernel or a container has no such filter.
  bool ok() const { return listener_ > 0; }

  // The child exits, as a program that returns from main does, with what
  // `child` returns. Calls are counted from 1.
  void Arm(int64_t call, std::function<int()> child);
  // From here on no child is made.
  Made Disarm();

 private:
  ForkAtCall();
  void Listen();
  void MakeChildren();
  void AwaitChild();

  int listener_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_armed_ = false;
  bool is_due_ = false;  // the call has come, and no child is there yet
  int64_t call_ = 0;
  Made made_;
  std::function<int()> run_;
};

}  // namespace terrace
