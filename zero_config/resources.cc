#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "terrace/machine.h"
#include "terrace/zero_config.h"

namespace terrace {
namespace {

constexpr char kPath[] = "zero_optimization.offload_optimizer.nvme_path";

absl::Status Prefixed(const std::string& path, const absl::Status& status) {
  return WithIoFault(Reworded(status, absl::StrCat(kPath, ": \"", path,
                                                   "\": ", status.message())),
                     {.path = path});
}

// Whether this is no directory to look into: what a file or a device holds is
// looked at when it is opened.
bool IsGiven(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 &&
         (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode));
}

// Makes a file there and takes its name away again. Sets whether it could be
// opened for direct I/O.
absl::Status ProbeWriting(const std::string& path, bool* direct) {
  const std::string name =
      absl::StrCat(path, "/.terrace-probe-", static_cast<int64_t>(getpid()));
  const int flags = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  int file = open(name.c_str(), flags | O_DIRECT, 0600);
  *direct = file >= 0;
  if (file < 0 && errno == EINVAL) {
    unlink(name.c_str());  // some systems make the file and then refuse
    file = open(name.c_str(), flags, 0600);
  }
  if (file >= 0) {
    close(file);
    unlink(name.c_str());
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string text =
      absl::StrCat("cannot be written: ", std::strerror(error));
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return WithIoFault(is_full ? absl::ResourceExhaustedError(text)
                             : absl::PermissionDeniedError(text),
                     {.error = error});
}

// Paths of one file system share its room.
absl::Status CheckRoom(const std::vector<std::string>& paths,
                       int64_t disk_bytes) {
  std::map<dev_t, std::vector<std::string>> systems;
  for (const std::string& path : paths) {
    if (IsGiven(path)) continue;
    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
      const int error = errno;
      return Prefixed(path,
                      WithIoFault(absl::UnavailableError(std::strerror(error)),
                                  {.error = error}));
    }
    systems[info.st_dev].push_back(path);
  }
  const auto all = static_cast<int64_t>(paths.size());
  for (const auto& [system, below] : systems) {
    const auto count = static_cast<int64_t>(below.size());
    const int64_t need = (disk_bytes + all - 1) / all * count;
    TERRACE_ASSIGN_OR_RETURN(const int64_t free, FreeDiskBytes(below.front()));
    if (free >= need) continue;
    const absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat("the optimizer's state needs ", need, " bytes there, ",
                     free, " are free"));
    return Prefixed(absl::StrJoin(below, "\", \""),
                    WithIoFault(full, {ENOSPC, below.front()}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ZeroConfigNote>> CheckZeroConfigResources(
    const ZeroConfigOptions& options,
    absl::Span<const ParameterSpec> parameters) {
  const int64_t budget = options.runtime.host_budget_bytes;
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan plan,
      OffloadedOptimizer::Plan(parameters, options.optimizer, budget));
  if (!options.runtime.daemon.empty()) {
    // What there is the daemon says, once it is asked.
    return std::vector<ZeroConfigNote>();
  }
  const std::vector<std::string>& paths = options.runtime.paths;
  const int64_t whole = plan.disk_bytes + plan.window_bytes;
  if (paths.empty() && budget < whole) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a budget of ", budget, " bytes and no nvme_path: the state needs ",
        plan.disk_bytes, " bytes, transfers ", plan.window_bytes, ", together ",
        whole));
  }
  const int64_t available = AvailableMemoryBytes();
  if (available < budget) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "host memory: the budget is ", budget, " bytes (", plan.window_bytes,
        " for transfers, ", budget - plan.window_bytes,
        " for state that stays), ", available, " are available"));
  }
  std::vector<ZeroConfigNote> notes;
  for (const std::string& path : paths) {
    if (IsGiven(path)) continue;
    const absl::StatusOr<int64_t> reachable = FreeDiskBytes(path);
    if (!reachable.ok()) return Prefixed(path, reachable.status());
    bool direct = false;
    const absl::Status written = ProbeWriting(path, &direct);
    if (!written.ok()) return Prefixed(path, written);
    if (direct) continue;
    notes.push_back({ZeroConfigNote::Kind::kMeaning, kPath,
                     absl::StrCat("\"", path,
                                  "\" has no direct I/O: transfers go through "
                                  "the kernel's page cache")});
  }
  if (!paths.empty()) {
    TERRACE_RETURN_IF_ERROR(CheckRoom(paths, plan.disk_bytes));
  }
  return notes;
}

}  // namespace terrace
