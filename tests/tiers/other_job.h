// A job of another process, which has a place until it is killed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"

namespace terrace {

class OtherJob {
 public:
  // In the other process `run` takes the place, calls what it is given with
  // whether it has it, which ends the wait here, and does not return.
  using HasIt = absl::FunctionRef<void(bool)>;
  explicit OtherJob(absl::FunctionRef<void(HasIt)> run) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      run([&](bool has_it) {
        const char verdict = has_it ? 'y' : 'n';
        if (write(ready[1], &verdict, 1) != 1) _exit(1);
        while (true) pause();
      });
      _exit(1);
    }
    close(ready[1]);
    char verdict = 0;
    EXPECT_EQ(read(ready[0], &verdict, 1), 1);
    EXPECT_EQ(verdict, 'y');
    close(ready[0]);
  }
  ~OtherJob() { Kill(); }
  OtherJob(const OtherJob&) = delete;
  OtherJob& operator=(const OtherJob&) = delete;

  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
};

}  // namespace terrace
