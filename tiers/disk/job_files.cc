#include "tiers/disk/job_files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kPrefix[] = "terrace-";

}  // namespace

std::string NewJobName() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    random = static_cast<uint64_t>(now.tv_sec) * 1'000'000'007u +
             static_cast<uint64_t>(now.tv_nsec);
  }
  return absl::StrCat(kPrefix, getpid(), "-",
                      absl::Hex(random, absl::kZeroPad16));
}

bool IsJobName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return false;
  const size_t dash = name.find('-');
  if (dash == 0 || dash == absl::string_view::npos) return false;
  for (const char c : name.substr(0, dash)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return false;
  }
  const absl::string_view random = name.substr(dash + 1);
  for (const char c : random) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return random.size() == 16;
}

bool IsStaleJobName(absl::string_view name) {
  return absl::ConsumeSuffix(&name, kStaleSuffix) && IsJobName(name);
}

int RemoveJobFiles(int path_fd, int directory_fd, const std::string& name) {
  int error = 0;
  const auto note = [&error](int result) {
    if (result != 0 && errno != ENOENT && error == 0) error = errno;
  };
  note(unlinkat(directory_fd, kJobStateName, 0));
  note(unlinkat(directory_fd, kJobLockName, 0));
  note(unlinkat(path_fd, name.c_str(), AT_REMOVEDIR));
  return error;
}

}  // namespace terrace
