#include "examples/train_gpt/disk_room.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/train_gpt/requirements.h"
#include "examples/train_gpt/state_path.h"
#include "terrace/machine.h"
#include "terrace/tier.h"

namespace train_gpt {
namespace {

constexpr char kTheState[] = "the state";
constexpr int64_t kBlock = 4096;

std::string ExactBytes(int64_t bytes) {
  return absl::StrCat(bytes, " bytes (", BytesText(static_cast<double>(bytes)),
                      ")");
}

// What of a plan lies on one file system or device.
struct FileSystem {
  int64_t free_bytes = 0;
  int64_t left_bytes = 0;           // of these, by what is on it so far
  int64_t need = 0;                 // of all that is to go there
  int64_t reused = 0;               // of it, in files that are there already
  std::vector<std::string> places;  // as the user named them
  std::vector<std::string> needs;   // what is to go there
};

using FileSystems = std::map<dev_t, FileSystem>;

// A path of the state.
struct Path {
  FileSystem* system = nullptr;
  int64_t reused_left = 0;  // of its file
  int64_t budget_left = 0;
};

void AddOnce(std::vector<std::string>* names, const std::string& name) {
  if (!absl::c_linear_search(*names, name)) names->push_back(name);
}

void Add(FileSystem& system, const std::string& place, const char* what,
         int64_t bytes) {
  AddOnce(&system.places, place);
  AddOnce(&system.needs, what);
  system.need += bytes;
  system.left_bytes -= bytes;
}

FileSystem& Known(FileSystems& systems, dev_t device, int64_t free_bytes) {
  const auto [found, is_new] = systems.try_emplace(device);
  if (is_new) found->second.free_bytes = found->second.left_bytes = free_bytes;
  return found->second;
}

// That of a directory. Null where nothing can be found out: then the first
// write there says what is wrong with it.
FileSystem* Find(FileSystems& systems, const std::string& directory) {
  const absl::StatusOr<int64_t> free = terrace::FreeDiskBytes(directory);
  struct stat info;
  if (!free.ok() || stat(directory.c_str(), &info) != 0) return nullptr;
  return &Known(systems, info.st_dev, *free);
}

// The directory, or the one that it will be made in.
std::string PlaceOf(const std::string& save) {
  std::error_code error;
  if (std::filesystem::is_directory(save, error)) return save;
  std::filesystem::path path(save);
  if (!path.has_filename()) path = path.parent_path();  // "here/"
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

const char* PathFlag(const OffloadPlan& plan) {
  return plan.runtime.tiers.empty() ? "--nvme-path" : "--tier";
}

// Of a path; 0: all that there is.
int64_t BudgetOf(const OffloadPlan& plan, const std::string& path) {
  for (const terrace::TierSpec& tier : plan.runtime.tiers) {
    if (tier.kind == terrace::TierKind::kDisk && tier.place == path) {
      return tier.budget_bytes;
    }
  }
  return 0;
}

// Each path with the room that it shares or has.
absl::StatusOr<std::vector<Path>> InspectPaths(const OffloadPlan& plan,
                                               FileSystems& systems) {
  std::map<std::pair<dev_t, ino_t>, std::string> known;
  std::vector<Path> paths;
  for (const std::string& path : plan.paths) {
    const absl::StatusOr<StatePath> state = InspectStatePath(path);
    if (!state.ok()) {
      return absl::Status(
          state.status().code(),
          absl::StrCat(PathFlag(plan), ": ", state.status().message()));
    }
    const auto [twin, fresh] = known.emplace(state->identity, path);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat(PathFlag(plan), ": ", path, " is the same as ",
                       twin->second, "; each is given once"));
    }
    // Of a device its own room.
    FileSystem& system =
        Known(systems, state->identity.first, state->free_bytes);
    const int64_t budget = BudgetOf(plan, path);
    AddOnce(&system.places,
            budget == 0
                ? path
                : absl::StrCat(path, " (budget ",
                               BytesText(static_cast<double>(budget)), ")"));
    paths.push_back(
        {.system = &system,
         .reused_left = state->used_bytes,
         .budget_left = budget == 0 ? INT64_MAX : budget / kBlock * kBlock});
  }
  return paths;
}

// As much of it as the path has room for; the bytes.
int64_t Put(Path& path, int64_t bytes) {
  FileSystem& system = *path.system;
  const int64_t reused = std::min({bytes, path.budget_left, path.reused_left});
  const int64_t fresh = std::min({bytes - reused, path.budget_left - reused,
                                  std::max<int64_t>(0, system.left_bytes)});
  path.budget_left -= reused + fresh;
  path.reused_left -= reused;
  system.left_bytes -= fresh;
  system.need += reused + fresh;
  system.reused += reused;
  if (reused + fresh > 0) AddOnce(&system.needs, kTheState);
  return reused + fresh;
}

bool IsMapped(const terrace::TierSpec& tier) {
  return tier.kind == terrace::TierKind::kFar ||
         tier.kind == terrace::TierKind::kPmem;
}

// What the disks must have room for: not what far and persistent memory have in
// their budgets. What is really there the runtime finds out.
int64_t BytesOnDisks(const OffloadPlan& plan) {
  int64_t bytes = plan.plan.disk_bytes;
  for (const terrace::TierSpec& tier : plan.runtime.tiers) {
    if (!IsMapped(tier)) continue;
    if (tier.budget_bytes == 0) return 0;
    bytes -= tier.budget_bytes;
  }
  return std::max<int64_t>(0, bytes);
}

// Evenly, and of what some have no room for again; the bytes that none has.
int64_t Spread(int64_t bytes, std::vector<Path> paths) {
  while (bytes > 0 && !paths.empty()) {
    const int64_t share = (bytes - 1) / static_cast<int64_t>(paths.size()) + 1;
    std::vector<Path> open;
    for (Path& path : paths) {
      const int64_t wanted = std::min(share, bytes);
      const int64_t put = Put(path, wanted);
      bytes -= put;
      if (put == wanted) open.push_back(path);
    }
    paths = std::move(open);
  }
  return bytes;
}

std::string FreeText(const FileSystem& system) {
  return absl::StrCat(absl::StrJoin(system.places, ", "), " has ",
                      ExactBytes(system.free_bytes + system.reused), " free");
}

absl::Status NoRoom(const std::string& flag, const std::string& free,
                    const std::vector<std::string>& needs, int64_t need) {
  return absl::ResourceExhaustedError(
      absl::StrCat(flag, ": not enough room: ", free, ", and ",
                   absl::StrJoin(needs, " and "),
                   needs.size() > 1 ? " need " : " needs ", ExactBytes(need)));
}

absl::Status CheckRoom(const OffloadPlan& plan, const FileSystem& system) {
  if (system.left_bytes >= 0) return absl::OkStatus();
  const bool has_state = system.needs.front() == kTheState;
  return NoRoom(has_state ? PathFlag(plan) : system.needs.front(),
                FreeText(system), system.needs, system.need);
}

absl::Status AddScratch(const OffloadPlan& plan, FileSystems& systems) {
  if (plan.scratch.empty()) return absl::OkStatus();
  if (access(plan.scratch.c_str(), W_OK | X_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--verify: its copy of the parameters is kept in ",
                     plan.scratch, ": ", std::strerror(errno)));
  }
  if (FileSystem* const system = Find(systems, plan.scratch)) {
    Add(*system, plan.scratch, "--verify", plan.verify_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDisk(const OffloadPlan& plan) {
  if (plan.paths.empty() && plan.runtime.daemon.empty() &&
      absl::c_none_of(plan.runtime.tiers, IsMapped)) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathFlag(plan), ": no path is given"));
  }
  FileSystems systems;
  const absl::StatusOr<std::vector<Path>> paths = InspectPaths(plan, systems);
  if (!paths.ok()) return paths.status();
  const int64_t bytes = BytesOnDisks(plan);
  if (!paths->empty() && Spread(bytes, *paths) > 0) {
    std::vector<std::string> free;
    for (const auto& [device, system] : systems) {
      free.push_back(FreeText(system));
    }
    return NoRoom(PathFlag(plan), absl::StrJoin(free, "; "), {kTheState},
                  bytes);
  }
  absl::Status status = AddScratch(plan, systems);
  if (!status.ok()) return status;
  if (!plan.save.empty()) {
    if (FileSystem* const system = Find(systems, PlaceOf(plan.save))) {
      Add(*system, plan.save, "--save", plan.save_bytes);
    }
  }
  for (const auto& [device, system] : systems) {
    status.Update(CheckRoom(plan, system));
  }
  return status;
}

}  // namespace train_gpt
