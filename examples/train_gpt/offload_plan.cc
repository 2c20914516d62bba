#include "examples/train_gpt/offload_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/train_gpt/requirements.h"
#include "terrace/machine.h"

namespace train_gpt {
namespace {

absl::Status Prefixed(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

using DirectoryIdentity = std::pair<dev_t, ino_t>;

// Of a directory that this process may list and write to.
absl::StatusOr<DirectoryIdentity> Identify(const std::string& path) {
  const absl::StatusOr<int64_t> reachable = terrace::FreeDiskBytes(path);
  if (!reachable.ok()) return reachable.status();
  struct stat info;
  if (access(path.c_str(), R_OK | W_OK | X_OK) != 0 ||
      stat(path.c_str(), &info) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " cannot be listed and written: ", strerror(errno)));
  }
  return DirectoryIdentity{info.st_dev, info.st_ino};
}

}  // namespace

absl::StatusOr<OffloadPlan> PlanOffload(const Flags& flags) {
  const int64_t element = flags.dtype == Dtype::kFloat32 ? 4 : 2;
  std::vector<terrace::ParameterSpec> specs;
  for (const ParameterShape& shape : ParameterShapes(flags.shape)) {
    specs.push_back({shape.name,
                     flags.dtype == Dtype::kFloat32 ? terrace::DType::kFloat32
                                                    : terrace::DType::kBFloat16,
                     shape.count()});
  }
  OffloadPlan result;
  result.optimizer.adam = flags.adam;
  result.optimizer.max_gradient_norm = flags.clip;
  result.optimizer.skip_nonfinite = flags.skip_nonfinite;
  result.optimizer.chunk_bytes = flags.chunk_bytes;
  result.schedule = flags.schedule;
  const int64_t parameters = ParameterCount(flags.shape);
  result.budget_bytes = flags.budget.Of(parameters * (element == 4 ? 8 : 12));
  if (flags.budget.chosen) {
    constexpr int64_t kPlenty = int64_t{1} << 60;
    const auto any =
        terrace::OffloadedOptimizer::Plan(specs, result.optimizer, kPlenty);
    if (!any.ok()) return any.status();
    result.budget_bytes =
        std::max(result.budget_bytes, any->minimum_budget_bytes);
  }
  auto plan = terrace::OffloadedOptimizer::Plan(specs, result.optimizer,
                                                result.budget_bytes);
  if (!plan.ok()) return Prefixed("--memory-budget", plan.status());
  result.plan = *plan;
  result.verify_bytes =
      flags.verify ? parameters * (element == 2 ? 2 + 4 : 4) : 0;
  result.runtime.host_budget_bytes = result.budget_bytes;
  result.runtime.paths = flags.nvme_paths;
  result.runtime.engine = flags.engine;
  result.runtime.pace = flags.pace;
  result.runtime.threads = static_cast<int>(flags.threads);
  return result;
}

absl::Status CheckDisk(const OffloadPlan& plan) {
  const std::vector<std::string>& paths = plan.runtime.paths;
  std::map<DirectoryIdentity, std::string> known;
  std::map<dev_t, std::vector<std::string>> systems;
  for (const std::string& path : paths) {
    const absl::StatusOr<DirectoryIdentity> identity = Identify(path);
    if (!identity.ok()) return Prefixed("--nvme-path", identity.status());
    const auto [twin, fresh] = known.emplace(*identity, path);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nvme-path: ", path, " is the same directory as ",
                       twin->second, "; each is given once"));
    }
    systems[identity->first].push_back(path);
  }
  for (const auto& [system, below] : systems) {
    int64_t need = plan.plan.disk_bytes * static_cast<int64_t>(below.size()) /
                   static_cast<int64_t>(paths.size());
    if (below.front() == paths.front()) need += plan.verify_bytes;
    const absl::StatusOr<int64_t> free = terrace::FreeDiskBytes(below.front());
    if (!free.ok()) return Prefixed("--nvme-path", free.status());
    if (*free >= need) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "--nvme-path: not enough room: ", absl::StrJoin(below, ", "), " has ",
        *free, " bytes free (", BytesText(static_cast<double>(*free)),
        "), and the state needs ", need, " (",
        BytesText(static_cast<double>(need)), ")"));
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
