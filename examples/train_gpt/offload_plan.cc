#include "examples/train_gpt/offload_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
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

// What of a plan lies on one file system.
struct FileSystem {
  std::vector<std::string> paths;
  std::string saves;  // the directory there that checkpoints need; empty: none
  int64_t need = 0;
};

// The directory, or the one that it will be made in.
std::string PlaceOf(const std::string& save) {
  std::error_code error;
  if (std::filesystem::is_directory(save, error)) return save;
  std::filesystem::path path(save);
  if (!path.has_filename()) path = path.parent_path();  // "here/"
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

absl::Status CheckRoom(const FileSystem& system, const OffloadPlan& plan) {
  const bool has_paths = !system.paths.empty();
  const char* flag = has_paths ? "--nvme-path" : "--save";
  const absl::StatusOr<int64_t> free =
      terrace::FreeDiskBytes(has_paths ? system.paths.front() : system.saves);
  if (!free.ok()) return Prefixed(flag, free.status());
  if (*free >= system.need) return absl::OkStatus();
  std::vector<std::string> places = system.paths;
  if (!system.saves.empty()) places.push_back(plan.save);
  const char* what = "the state needs ";
  if (!system.saves.empty()) {
    what = has_paths ? "the state and --save need " : "--save needs ";
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      flag, ": not enough room: ", absl::StrJoin(places, ", "), " has ", *free,
      " bytes free (", BytesText(static_cast<double>(*free)), "), and ", what,
      system.need, " (", BytesText(static_cast<double>(system.need)), ")"));
}

// Of what --save adds to the disk at most. A new checkpoint is written beside
// the one before.
int64_t SaveBytes(const Flags& flags, int64_t parameters, int64_t state_bytes) {
  if (flags.save.empty()) return 0;
  std::error_code error;
  const bool goes_on =
      !flags.resume.empty() &&
      std::filesystem::equivalent(flags.save, flags.resume, error);
  const bool repeated = flags.save_every > 0 && flags.save_every < flags.steps;
  // Names, shapes and checksums: 1 MiB for each checkpoint, and more of more.
  const int64_t one =
      parameters * (flags.dtype == Dtype::kFloat32 ? 4 : 2) + state_bytes;
  return (one + one / 1000 + (1 << 20)) * (repeated && !goes_on ? 2 : 1);
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
  result.save = flags.save;
  result.save_bytes = SaveBytes(flags, parameters, plan->state_bytes);
  result.runtime.host_budget_bytes = result.budget_bytes;
  result.runtime.paths = flags.nvme_paths;
  result.runtime.engine = flags.engine;
  result.runtime.pace = flags.pace;
  result.runtime.machine_profile = flags.machine_profile;
  result.runtime.threads = static_cast<int>(flags.threads);
  return result;
}

absl::Status CheckDisk(const OffloadPlan& plan) {
  const std::vector<std::string>& paths = plan.runtime.paths;
  if (paths.empty()) {
    return absl::InvalidArgumentError("--nvme-path: no path is given");
  }
  const auto share =
      plan.plan.disk_bytes / static_cast<int64_t>(paths.size()) + 1;
  std::map<DirectoryIdentity, std::string> known;
  std::map<dev_t, FileSystem> systems;
  for (const std::string& path : paths) {
    const absl::StatusOr<DirectoryIdentity> identity = Identify(path);
    if (!identity.ok()) return Prefixed("--nvme-path", identity.status());
    const auto [twin, fresh] = known.emplace(*identity, path);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nvme-path: ", path, " is the same directory as ",
                       twin->second, "; each is given once"));
    }
    FileSystem& system = systems[identity->first];
    system.paths.push_back(path);
    system.need += share;
    if (path == paths.front()) system.need += plan.verify_bytes;
  }
  if (!plan.save.empty()) {
    // Where nothing can be found out, saving says what is wrong with it.
    const std::string place = PlaceOf(plan.save);
    struct stat info;
    if (stat(place.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      FileSystem& system = systems[info.st_dev];
      system.saves = place;
      system.need += plan.save_bytes;
    }
  }
  for (const auto& [device, system] : systems) {
    absl::Status status = CheckRoom(system, plan);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
