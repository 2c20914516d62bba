#include "tiers/disk/job_files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kPrefix[] = "terrace-";
constexpr size_t kRandomDigits = 16;

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
                      absl::Hex(random, absl::kZeroPad16), "-",
                      Host::Current().Text());
}

std::string JobOwner::Text() const {
  return absl::StrCat("process ", pid, " on ",
                      host ? host->name : "a host that its name leaves out");
}

std::optional<JobOwner> OwnerOfJob(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return std::nullopt;
  const size_t dash = name.find('-');
  if (dash == 0 || dash == absl::string_view::npos) return std::nullopt;
  JobOwner owner;
  owner.pid = std::string(name.substr(0, dash));
  for (const char c : owner.pid) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return std::nullopt;
  }
  name.remove_prefix(dash + 1);
  const absl::string_view random = name.substr(0, kRandomDigits);
  for (const char c : random) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
  }
  if (random.size() != kRandomDigits) return std::nullopt;
  name.remove_prefix(kRandomDigits);
  if (name.empty()) return owner;
  if (!absl::ConsumePrefix(&name, "-")) return std::nullopt;
  owner.host = Host::Parse(name);
  if (!owner.host) return std::nullopt;
  return owner;
}

bool IsJobName(absl::string_view name) { return OwnerOfJob(name).has_value(); }

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
