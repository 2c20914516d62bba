// A process of a job that a test plays in a child of its own: it tells when it
// has come to where it is to be, and is there until it is killed or may go on.
//
//   PlayedProcess process([&](PlayedProcess::Stage& stage) {
//     auto job = ConnectAs(daemon, 1 << 20);
//     if (!job.ok()) return;  // the test hears that it told nothing
//     stage.Tell();
//     stage.Await();
//   });
//   ASSERT_TRUE(process.HasTold());
//   process.Kill();
//
// Forks: not where a child may have no threads (kChildrenHaveThreads). One
// thread.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/check.h"

namespace terrace {

class PlayedProcess {
 public:
  class Stage {
   public:
    Stage(int told, int leave) : told_(told), leave_(leave) {}
    void Tell() { TERRACE_CHECK(write(told_, "x", 1) == 1); }
    // Until it may go on; for ever where it is to be killed.
    void Await() {
      char byte = 0;
      while (read(leave_, &byte, 1) < 0) {
      }
    }

   private:
    const int told_;
    const int leave_;
  };

  explicit PlayedProcess(const std::function<void(Stage&)>& play) {
    int told[2] = {};
    int leave[2] = {};
    TERRACE_CHECK(pipe(told) == 0 && pipe(leave) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      // So that it hears if the test has gone, and the test if it has.
      close(told[0]);
      close(leave[1]);
      Stage stage(told[1], leave[0]);
      play(stage);
      _exit(0);
    }
    close(told[1]);
    close(leave[0]);
    told_ = told[0];
    leave_ = leave[1];
  }
  ~PlayedProcess() {
    Kill();
    Reap();
    close(told_);
    if (leave_ >= 0) close(leave_);
  }
  PlayedProcess(const PlayedProcess&) = delete;
  PlayedProcess& operator=(const PlayedProcess&) = delete;

  // Waits for that; false: it has ended.
  bool HasTold() {
    char byte = 0;
    return read(told_, &byte, 1) == 1;
  }
  void Kill() { Send(SIGKILL); }
  void Send(int signal) {
    if (!reaped_) kill(pid_, signal);
  }
  // It may go on, and is waited for.
  void GoOn() {
    close(leave_);
    leave_ = -1;
    Reap();
  }
  void Reap() {
    if (!reaped_) waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

 private:
  pid_t pid_ = -1;
  int told_ = -1;
  int leave_ = -1;
  bool reaped_ = false;
};

}  // namespace terrace
