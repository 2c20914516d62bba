#include "daemon/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/threads/own_loop.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

constexpr char kName[] = "terraced";

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

absl::StatusOr<std::unique_ptr<Log>> Log::Create(const char* journal_stream,
                                                 LoopTable& loops) {
  try {
    return std::unique_ptr<Log>(new Log(journal_stream, loops));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the log cannot begin: ", error.what()));
  }
}

Log::Log(const char* journal_stream, LoopTable& loops)
    : logger_(
          std::make_unique<spdlog::logger>(kName, MakeSink(journal_stream))),
      loop_(loops.Add({"log"})) {
  logger_->set_level(spdlog::level::info);
  thread_ = StartThread("terrace-log", [this] { Run(); });
}

Log::~Log() { Flush(); }

void Log::Flush() {
  if (!thread_.joinable()) return;
  alarm(kMostSeconds);
  ends_ = true;
  wake_.WakeAll();
  thread_.join();  // which ends with the last line
  alarm(0);
}

void Log::Run() {
  const OwnLoop loop(&loop_.heartbeat());
  while (true) {
    OwnLoop::Beat();
    const uint32_t seen = wake_.Look();
    const bool ends = ends_;  // what was said until then is there
    WriteAll();
    if (ends) return;
    wake_.Await(seen);
  }
}

void Log::WriteAll() {
  for (const std::unique_ptr<LogLine>& each : lines_.Take()) {
    logger_->log(each->said_at, spdlog::source_loc{},
                 static_cast<spdlog::level::level_enum>(each->level),
                 each->text);
    OwnLoop::Beat();
  }
}

void Log::SetLevel(absl::string_view level) {
  logger_->set_level(spdlog::level::from_str(std::string(level)));
}

// The level is a word that each of its loggers' threads may read.
void Log::Say(int level, const std::string& line) {
  if (!logger_->should_log(static_cast<spdlog::level::level_enum>(level))) {
    return;
  }
  lines_.Add(level, line);
  wake_.WakeOne();
}

void Log::Debug(const std::string& line) { Say(spdlog::level::debug, line); }
void Log::Info(const std::string& line) { Say(spdlog::level::info, line); }
void Log::Warn(const std::string& line) { Say(spdlog::level::warn, line); }
void Log::Error(const std::string& line) { Say(spdlog::level::err, line); }

}  // namespace terrace
