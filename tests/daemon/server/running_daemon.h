// A `terraced` that a test started, in a directory of its own, with what its
// service manager hears of it.
//
//   RunningDaemon daemon("quota.user.connections = 3\n");
//   ASSERT_TRUE(daemon.Serves());
//   absl::StatusOr<DaemonStatus> status = daemon.Status();
//   EXPECT_EQ(daemon.End().exit_code, 0);
//
// One thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "daemon/wire/envelope.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

// The latest that anything here takes.
// How the daemon is that listens there.
absl::StatusOr<DaemonStatus> AskStatus(const std::string& path,
                                       absl::Time deadline);

inline absl::Time Soon() { return SystemClock().Now() + absl::Seconds(30); }

class RunningDaemon {
 public:
  struct Setting {
    // What the shell does before it becomes the daemon: "ulimit -n 40".
    std::string before = ":";
    std::string redirection;  // "3<&7"
    // The user it runs as, where the test is root's; 0: as the test.
    uid_t uid = 0;
    bool owns_socket = true;  // it is told where to listen
    // Its service manager keeps descriptors for it, and hands them to the next.
    bool keeps = false;
    std::string tiers;    // instead of those below
    std::string program;  // instead of `terraced`
  };

  // `text` follows the tiers, 8 MiB of memory and 8 MiB of a path.
  explicit RunningDaemon(const std::string& text);
  RunningDaemon(const std::string& text, const Setting& setting);
  ~RunningDaemon();
  RunningDaemon(const RunningDaemon&) = delete;
  RunningDaemon& operator=(const RunningDaemon&) = delete;

  void Start();
  // The same while one before may still be there, as who was killed within the
  // kernel is.
  void StartBeside();
  // Another file for the next start or SIGHUP.
  void WriteConfig(const std::string& text);

  // Until it is ready; false: it ended first.
  bool Serves();
  bool ServesWithin(absl::Duration patience);
  absl::StatusOr<DaemonStatus> Status() const;
  // What a service manager was told since the start; and until it was told
  // that.
  const std::vector<std::string>& Told();
  bool WaitUntilTold(const std::string& words);
  bool WasTold(const std::string& words);
  // Those that the service manager has, by name.
  const std::map<std::string, int>& Kept();
  // Loses those whose names have that in them.
  void ForgetKept(const std::string& part = "");

  // As ChildProcess has it.
  bool WaitUntil(const std::function<bool()>& condition) {
    return child_->WaitUntil(condition);
  }
  void Kill(int signal) { child_->Kill(signal); }
  const ChildResult& Wait() { return child_->Wait(); }
  const ChildResult& End();

  bool running() { return child_->running(); }
  pid_t pid() const { return child_->pid(); }
  const std::string& socket() const { return socket_; }
  const std::string& config() const { return config_; }
  // Of the path where tensors would be.
  std::vector<std::string> OnPath() const;

 private:
  void Hear(const std::string& words, int descriptor);

  const TemporaryDirectory directory_;
  const Setting setting_;
  const std::string path_;
  const std::string socket_;
  const std::string config_;
  int notices_ = -1;  // a socket that the daemon tells its words to
  std::vector<std::string> told_;
  std::map<std::string, int> kept_;
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<ChildProcess> before_;
};

}  // namespace terrace
