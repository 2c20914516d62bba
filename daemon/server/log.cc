#include "daemon/server/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

constexpr char kName[] = "terraced";
constexpr size_t kMostLines = 1024;  // that wait to be written

// As a service manager tells it: "DEVICE:INODE" of the stream that it gave.
bool IsJournal(int fd, const char* journal_stream) {
  struct stat found = {};
  if (journal_stream == nullptr || fstat(fd, &found) != 0) return false;
  return absl::StrCat(found.st_dev, ":", found.st_ino) == journal_stream;
}

spdlog::sink_ptr MakeSink(const char* journal_stream) {
  if (IsJournal(STDERR_FILENO, journal_stream)) {
    return std::make_shared<spdlog::sinks::systemd_sink_mt>(kName);
  }
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l: %v");
  return sink;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Log>> Log::Create(const char* journal_stream) {
  try {
    return std::unique_ptr<Log>(new Log(journal_stream));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the log cannot begin: ", error.what()));
  }
}

Log::Log(const char* journal_stream) {
  const BlockedSignals blocked;  // in the thread that writes
  writer_ = std::make_shared<spdlog::details::thread_pool>(kMostLines, 1);
  logger_ = std::make_shared<spdlog::async_logger>(
      kName, MakeSink(journal_stream), writer_,
      spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_level(spdlog::level::info);
}

Log::~Log() { Flush(); }

void Log::Flush() {
  if (writer_ == nullptr) return;
  alarm(kMostSeconds);
  writer_.reset();  // which ends its thread with the last line
  alarm(0);
}

void Log::SetLevel(absl::string_view level) {
  logger_->set_level(spdlog::level::from_str(std::string(level)));
}

void Log::Debug(const std::string& line) { logger_->debug("{}", line); }
void Log::Info(const std::string& line) { logger_->info("{}", line); }
void Log::Warn(const std::string& line) { logger_->warn("{}", line); }
void Log::Error(const std::string& line) { logger_->error("{}", line); }

}  // namespace terrace
