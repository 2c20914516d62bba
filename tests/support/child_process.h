// A program that a test starts, watches and may kill.
//
//   ChildProcess child({path, "--steps", "9"});
//   ASSERT_TRUE(child.WaitForOutput("step 3/"));
//   child.Kill(SIGKILL);
//   EXPECT_EQ(child.Wait().signal, SIGKILL);
//
// Killed, if it still runs, with the object. No wait is longer than two
// minutes, however long the child has run before it: then the child is killed,
// which the result and its errors show. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace terrace {

struct ChildResult {
  int exit_code = -1;  // -1: it was ended by a signal, or never ran
  int signal = 0;
  std::string output;  // standard output
  std::string errors;  // standard error
};

struct ChildOptions {
  // Without root's right to pass over the permissions of files; the user stays
  // the same, so that what it needs can still be found in root's home.
  bool respect_permissions = false;
  int64_t largest_file_bytes = 0;  // RLIMIT_FSIZE; 0: as it is
  double longest_seconds = 120;    // of one wait, then it is killed
};

class ChildProcess {
 public:
  // What a child exits with that could not be started as asked for.
  static constexpr int kNotStarted = 125;

  explicit ChildProcess(const std::vector<std::string>& command,
                        const ChildOptions& options = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  // Standard output so far, as far as it was waited for.
  const std::string& output() const { return result_.output; }

  // Until it has printed this, counted from its start; false: it ended.
  bool WaitForOutput(const std::string& text);
  // Until the condition holds, asked again and again; false: it ended first.
  bool WaitUntil(const std::function<bool()>& condition);
  void Kill(int signal);
  // Until it has ended.
  const ChildResult& Wait();

 private:
  // Each wait has its time from here on.
  void BeginWait();
  // Its time is over, and the child is killed.
  bool Late();
  // Takes what can be had of its output within the time; false at its end.
  bool ReadOutput(int timeout_ms);
  void Reap(bool block);

  pid_t pid_ = -1;
  int output_fd_ = -1;
  int errors_fd_ = -1;  // an unnamed file
  bool ended_ = false;
  const double longest_seconds_;
  double deadline_ = 0;  // of the wait, in seconds of the steady clock
  bool was_late_ = false;
  ChildResult result_;
};

}  // namespace terrace
