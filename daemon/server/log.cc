#include "daemon/server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr char kName[] = "terraced";

// As a service manager tells it: "DEVICE:INODE" of the stream that it gave.
bool IsJournal(int fd) {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat found = {};
  if (stream == nullptr || fstat(fd, &found) != 0) return false;
  return absl::StrCat(found.st_dev, ":", found.st_ino) == stream;
}

std::shared_ptr<spdlog::logger> MakeLogger() {
  if (IsJournal(STDERR_FILENO)) {
    auto sink = std::make_shared<spdlog::sinks::systemd_sink_mt>(kName);
    return std::make_shared<spdlog::logger>(kName, std::move(sink));
  }
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>(kName, std::move(sink));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l: %v");
  return logger;
}

}  // namespace

bool Log::IsLevel(absl::string_view level) {
  return level == "debug" || level == "info" || level == "warning" ||
         level == "error";
}

Log::Log(absl::string_view level) {
  const std::shared_ptr<spdlog::logger> logger = MakeLogger();
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(logger);
  SetLevel(level);
}

void Log::SetLevel(absl::string_view level) {
  spdlog::set_level(spdlog::level::from_str(std::string(level)));
}

void Log::Info(const std::string& line) { spdlog::info("{}", line); }
void Log::Warn(const std::string& line) { spdlog::warn("{}", line); }
void Log::Error(const std::string& line) { spdlog::error("{}", line); }

}  // namespace terrace
