#include "examples/train_gpt/process_memory.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace train_gpt {
namespace {

// The value of a line "name:   123 kB", in bytes.
absl::StatusOr<int64_t> ReadKilobytes(const char* path, const char* name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    int64_t kilobytes = 0;
    if (absl::ConsumePrefix(&rest, name) && absl::ConsumePrefix(&rest, ":") &&
        absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtoi(rest, &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return absl::UnavailableError(absl::StrCat("no ", name, " in ", path));
}

}  // namespace

absl::StatusOr<int64_t> PeakResidentBytes() {
  return ReadKilobytes("/proc/self/status", "VmHWM");
}

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  return ReadKilobytes("/proc/meminfo", "MemAvailable");
}

absl::StatusOr<int64_t> FreeDiskBytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return static_cast<int64_t>(info.f_bavail) *
         static_cast<int64_t>(info.f_frsize);
}

}  // namespace train_gpt
