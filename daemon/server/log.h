// What the daemon says of itself, a line each: to the journal where its
// standard error is the journal's, else to standard error. A thread of its own
// writes the lines, so that a reader that does not read holds up nobody: then
// the oldest ones are lost. This is the one door of spdlog.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spdlog {
class logger;
namespace details {
class thread_pool;
}  // namespace details
}  // namespace spdlog

namespace terrace {

class Log {
 public:
  // `journal_stream`: the value of JOURNAL_STREAM, which a service manager
  // sets; null: none. ResourceExhausted: there is no thread to be had.
  static absl::StatusOr<std::unique_ptr<Log>> Create(
      const char* journal_stream);
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
  // for who ends the process then.
  void Flush();

 private:
  static constexpr unsigned kMostSeconds = 5;

  explicit Log(const char* journal_stream);

  std::shared_ptr<spdlog::details::thread_pool> writer_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace terrace
