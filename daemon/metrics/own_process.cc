// What /proc says of this process.
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/metrics/metrics_report.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1024;
// proc(5), counted from the state, which stands behind the name's bracket.
constexpr size_t kStartTimeField = 19;

double StartSeconds() {
  std::string line;
  std::getline(std::ifstream("/proc/self/stat"), line);
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields =
      absl::StrSplit(line.substr(name_end + 2), ' ');
  int64_t ticks = 0;
  if (fields.size() <= kStartTimeField ||
      !absl::SimpleAtoi(fields[kStartTimeField], &ticks)) {
    return 0;
  }
  timespec since_boot = {};
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  clock_gettime(CLOCK_REALTIME, &now);
  const auto seconds = [](const timespec& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_nsec) / 1e9;
  };
  return seconds(now) - seconds(since_boot) +
         static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t CountDescriptors() {
  std::error_code failed;
  int64_t count = -1;  // the look's own
  for (std::filesystem::directory_iterator at("/proc/self/fd", failed), end;
       !failed && at != end; at.increment(failed)) {
    ++count;
  }
  return failed ? 0 : count;
}

}  // namespace

MetricsReport::Process ReadOwnProcess() {
  MetricsReport::Process process;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &kib)) continue;
    if (words[0] == "RssAnon:") process.anonymous_bytes = kib * kKiB;
    if (words[0] == "RssFile:") process.file_bytes = kib * kKiB;
    if (words[0] == "RssShmem:") process.shared_bytes = kib * kKiB;
  }
  process.descriptors = CountDescriptors();
  process.start_seconds = StartSeconds();
  return process;
}

}  // namespace terrace
