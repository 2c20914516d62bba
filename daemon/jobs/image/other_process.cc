#include "daemon/jobs/image/other_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

// Sets errno if it is not ok().
OwnDescriptor Open(pid_t process) {
  const ForkPause pause;
  return OwnDescriptor::Of(
      static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
}

// Linux 6.9 numbers all processes; before, a descriptor of one has a number
// that others have as well.
std::optional<uint64_t> NumberOf(pid_t process) {
  constexpr long kPidFileSystem = 0x50494446;  // "PIDF"
  const OwnDescriptor opened = Open(process);
  struct statfs system = {};
  struct stat file = {};
  if (fstatfs(opened.get(), &system) != 0 || system.f_type != kPidFileSystem ||
      fstat(opened.get(), &file) != 0) {
    return std::nullopt;
  }
  return file.st_ino;
}

}  // namespace

absl::StatusOr<OwnDescriptor> OpenProcess(pid_t process) {
  OwnDescriptor opened = Open(process);
  if (opened.ok() || errno == ESRCH) return opened;
  return absl::ResourceExhaustedError(absl::StrCat(
      "process ", process, " cannot be watched: ", std::strerror(errno)));
}

bool HasGone(const OwnDescriptor& process) {
  pollfd wait = {process.get(), POLLIN, 0};
  return !process.ok() || poll(&wait, 1, /*timeout=*/0) > 0;
}

std::optional<uint64_t> StartOf(pid_t process) {
  const std::optional<uint64_t> number = NumberOf(process);
  if (number.has_value()) return number;
  // proc(5): the fields behind a name that is within parentheses, and may have
  // some itself; the start is the 22nd of all.
  constexpr size_t kBehindName = 22 - 3;
  const OwnDescriptor file = OwnDescriptor::Open(
      absl::StrCat("/proc/", process, "/stat"), O_RDONLY | O_CLOEXEC);
  std::array<char, 1024> bytes;
  const ssize_t size = read(file.get(), bytes.data(), bytes.size());
  if (size <= 0) return std::nullopt;
  const absl::string_view text(bytes.data(), static_cast<size_t>(size));
  const size_t name = text.rfind(')');
  if (name == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(name + 1), ' ', absl::SkipEmpty());
  uint64_t start = 0;
  if (fields.size() <= kBehindName ||
      !absl::SimpleAtoi(fields[kBehindName], &start)) {
    return std::nullopt;
  }
  return start;
}

}  // namespace terrace
