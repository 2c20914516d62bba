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

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/train_gpt/requirements.h"
#include "examples/train_gpt/state_path.h"
#include "terrace/machine.h"

namespace train_gpt {
namespace {

constexpr char kTheState[] = "the state";

absl::Status Prefixed(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

// What of a plan lies on one file system or device.
struct FileSystem {
  int64_t free_bytes = 0;
  int64_t need = 0;
  std::vector<std::string> places;  // as the user named them
  std::vector<std::string> needs;   // what is to go there
};

using FileSystems = std::map<dev_t, FileSystem>;

void AddOnce(std::vector<std::string>* names, const std::string& name) {
  if (!absl::c_linear_search(*names, name)) names->push_back(name);
}

void Add(FileSystem& system, const std::string& place, const char* what,
         int64_t bytes) {
  AddOnce(&system.places, place);
  AddOnce(&system.needs, what);
  system.need += bytes;
}

// That of a directory. Null where nothing can be found out: then the first
// write there says what is wrong with it.
FileSystem* Find(FileSystems& systems, const std::string& directory) {
  const absl::StatusOr<int64_t> free = terrace::FreeDiskBytes(directory);
  struct stat info;
  if (!free.ok() || stat(directory.c_str(), &info) != 0) return nullptr;
  FileSystem& system = systems[info.st_dev];
  system.free_bytes = *free;
  return &system;
}

// The directory, or the one that it will be made in.
std::string PlaceOf(const std::string& save) {
  std::error_code error;
  if (std::filesystem::is_directory(save, error)) return save;
  std::filesystem::path path(save);
  if (!path.has_filename()) path = path.parent_path();  // "here/"
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

absl::Status CheckRoom(const FileSystem& system) {
  if (system.free_bytes >= system.need) return absl::OkStatus();
  const bool has_state = system.needs.front() == kTheState;
  return absl::ResourceExhaustedError(absl::StrCat(
      has_state ? "--nvme-path" : system.needs.front(), ": not enough room: ",
      absl::StrJoin(system.places, ", "), " has ", system.free_bytes,
      " bytes free (", BytesText(static_cast<double>(system.free_bytes)),
      "), and ", absl::StrJoin(system.needs, " and "),
      system.needs.size() > 1 ? " need " : " needs ", system.need, " (",
      BytesText(static_cast<double>(system.need)), ")"));
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
  if (flags.budget.bytes == 0) {
    constexpr int64_t kPlenty = int64_t{1} << 60;
    const auto any =
        terrace::OffloadedOptimizer::Plan(specs, result.optimizer, kPlenty);
    if (!any.ok()) return any.status();
    result.budget_raised = result.budget_bytes < any->minimum_budget_bytes;
    result.budget_bytes =
        std::max(result.budget_bytes, any->minimum_budget_bytes);
  }
  auto plan = terrace::OffloadedOptimizer::Plan(specs, result.optimizer,
                                                result.budget_bytes);
  if (!plan.ok()) return Prefixed("--memory-budget", plan.status());
  result.plan = *plan;
  result.verify_bytes =
      flags.verify ? parameters * (element == 2 ? 2 + 4 : 4) : 0;
  if (flags.verify) result.scratch = ScratchDirectory(flags.nvme_paths);
  result.save = flags.save;
  result.save_bytes = SaveBytes(flags, parameters, plan->state_bytes);
  result.paths = flags.nvme_paths;
  result.runtime.tiers = flags.tiers;
  if (flags.tiers.empty()) {
    result.runtime.host_budget_bytes = result.budget_bytes;
    result.runtime.paths = flags.nvme_paths;
  }
  result.runtime.engine = flags.engine;
  result.runtime.pace = flags.pace;
  result.runtime.machine_profile = flags.machine_profile;
  result.runtime.threads = static_cast<int>(flags.threads);
  return result;
}

std::string PlanText(const OffloadPlan& plan) {
  const auto bytes = [](int64_t count) {
    return BytesText(static_cast<double>(count));
  };
  std::string text = absl::StrCat(
      "optimizer state: ", bytes(plan.plan.state_bytes),
      ", of it in memory at most ", bytes(plan.budget_bytes),
      plan.budget_raised ? " (the least that works)" : "", ", in ",
      plan.plan.chunks, " chunks of at most ", bytes(plan.plan.chunk_bytes),
      "\non disk: ", bytes(plan.plan.disk_bytes),
      " for the state and its headers on ", plan.paths.size(), " paths");
  if (plan.verify_bytes > 0) {
    absl::StrAppend(&text, ", ", bytes(plan.verify_bytes),
                    " for --verify's copy of the parameters");
  }
  absl::StrAppend(&text, "\n");
  return text;
}

absl::Status CheckDisk(const OffloadPlan& plan) {
  const std::vector<std::string>& paths = plan.paths;
  if (paths.empty()) {
    return absl::InvalidArgumentError("--nvme-path: no path is given");
  }
  const auto share =
      plan.plan.disk_bytes / static_cast<int64_t>(paths.size()) + 1;
  std::map<std::pair<dev_t, ino_t>, std::string> known;
  FileSystems systems;
  for (const std::string& path : paths) {
    const absl::StatusOr<StatePath> state = InspectStatePath(path);
    if (!state.ok()) return Prefixed("--nvme-path", state.status());
    const auto [twin, fresh] = known.emplace(state->identity, path);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nvme-path: ", path, " is the same as ", twin->second,
                       "; each is given once"));
    }
    // Of a device its own room.
    FileSystem& system = systems[state->identity.first];
    system.free_bytes = state->free_bytes;
    Add(system, path, kTheState,
        std::max<int64_t>(0, share - state->used_bytes));
  }
  if (!plan.scratch.empty()) {
    if (access(plan.scratch.c_str(), W_OK | X_OK) != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("--verify: its copy of the parameters is kept in ",
                       plan.scratch, ": ", std::strerror(errno)));
    }
    if (FileSystem* const system = Find(systems, plan.scratch)) {
      Add(*system, plan.scratch, "--verify", plan.verify_bytes);
    }
  }
  if (!plan.save.empty()) {
    if (FileSystem* const system = Find(systems, PlaceOf(plan.save))) {
      Add(*system, plan.save, "--save", plan.save_bytes);
    }
  }
  for (const auto& [device, system] : systems) {
    absl::Status status = CheckRoom(system);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
