// What the daemon says of itself, a line each: to the journal where its
// standard error is the journal's, else to standard error. A thread of its own,
// terrace-log, writes the lines, so that a reader that does not read holds up
// nobody: then the oldest ones are lost. To say a line takes no lock. This is
// the one door of spdlog.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/threads/wake_word.h"
#include "daemon/log/log_lines.h"
#include "daemon/watch/loop_table.h"

namespace spdlog {
class logger;
}  // namespace spdlog

namespace terrace {

class Log {
 public:
  // `journal_stream`: the value of JOURNAL_STREAM, which a service manager
  // sets; null: none. Its thread is watched in that table.
  // ResourceExhausted: there is no thread to be had.
  static absl::StatusOr<std::unique_ptr<Log>> Create(const char* journal_stream,
                                                     LoopTable& loops);
  // Waits until all is written: kMostSeconds at most, then the process is ended
  // by SIGALRM.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // "debug", "info", "warning" or "error": of less nothing is said.
  void SetLevel(absl::string_view level);

  void Debug(const std::string& line);
  void Info(const std::string& line);
  void Warn(const std::string& line);
  void Error(const std::string& line);
  // All that was said is written, as far as that takes kMostSeconds at most;
  // for who ends the process then. One thread's.
  void Flush();

  // For who asks whether the thread turns.
  Heartbeat& heartbeat() const { return loop_.heartbeat(); }
  void Wake() { wake_.WakeAll(); }

 private:
  static constexpr unsigned kMostSeconds = 5;

  Log(const char* journal_stream, LoopTable& loops);
  void Say(int level, const std::string& line);
  void Run();
  void WriteAll();

  const std::unique_ptr<spdlog::logger> logger_;
  const WatchedLoop loop_;
  LogLines lines_;
  WakeWord wake_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace terrace
