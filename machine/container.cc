#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "machine/facts.h"

namespace terrace {
namespace {

constexpr char kGroups[] = "/sys/fs/cgroup";

// One line of /proc/self/cgroup: "0::/path" (version 2) or
// "4:cpu,cpuacct:/path" (version 1).
struct Membership {
  std::vector<std::string> controllers;  // none: version 2
  std::string path;                      // without a slash at its end
};

std::vector<Membership> Memberships(const PseudoFiles& files) {
  std::vector<Membership> found;
  for (const std::string& line : files.Lines("/proc/self/cgroup")) {
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    found.push_back(
        {.controllers = absl::StrSplit(parts[1], ',', absl::SkipEmpty()),
         .path = parts[2] == "/" ? "" : parts[2]});
  }
  return found;
}

// The group itself and those above it, as folders: each limits its members.
std::vector<std::string> Ancestry(const std::string& root, std::string path) {
  std::vector<std::string> groups;
  while (true) {
    groups.push_back(absl::StrCat(root, path));
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return groups;
    path.resize(slash);
  }
}

struct MemoryFiles {
  int version;
  const char* limit;
  const char* used;
};
constexpr MemoryFiles kMemory1 = {1, "/memory.limit_in_bytes",
                                  "/memory.usage_in_bytes"};
constexpr MemoryFiles kMemory2 = {2, "/memory.max", "/memory.current"};
// Version 1 says "none" as the largest multiple of a page.
constexpr int64_t kNoMemoryLimit = INT64_MAX / 65536 * 65536;

void LimitMemory(const PseudoFiles& files, const std::string& group,
                 const MemoryFiles& names, ContainerReport* report) {
  const int64_t limit = files.Number(group + names.limit);
  if (limit < 0) return;
  report->group_version = names.version;
  if (limit >= kNoMemoryLimit || limit >= report->memory_limit_bytes) return;
  report->memory_limit_bytes = limit;
  report->memory_used_bytes = files.Number(group + names.used);
}

void LimitCpu(double quota, double period, ContainerReport* report) {
  if (quota <= 0 || period <= 0) return;
  const double limit = quota / period;
  report->cpu_limit =
      report->cpu_limit > 0 ? std::min(report->cpu_limit, limit) : limit;
}

void LimitTasks(int64_t limit, ContainerReport* report) {
  if (limit >= 0) report->task_limit = std::min(report->task_limit, limit);
}

void ReadVersion2(const PseudoFiles& files, const std::string& group,
                  ContainerReport* report) {
  LimitMemory(files, group, kMemory2, report);
  const std::vector<std::string> cpu =
      absl::StrSplit(files.Text(group + "/cpu.max"), ' ', absl::SkipEmpty());
  double quota = 0;
  double period = 0;
  if (cpu.size() == 2 && absl::SimpleAtod(cpu[0], &quota) &&
      absl::SimpleAtod(cpu[1], &period)) {
    LimitCpu(quota, period, report);  // "max 100000" is no limit
  }
  LimitTasks(files.Number(group + "/pids.max"), report);
}

void ReadVersion1(const PseudoFiles& files, const std::string& controller,
                  const std::string& group, ContainerReport* report) {
  if (controller == "memory") {
    LimitMemory(files, group, kMemory1, report);
  } else if (controller == "cpu") {
    LimitCpu(static_cast<double>(files.Number(group + "/cpu.cfs_quota_us")),
             static_cast<double>(files.Number(group + "/cpu.cfs_period_us")),
             report);
  } else if (controller == "pids") {
    LimitTasks(files.Number(group + "/pids.max"), report);
  }
}

std::string RuntimeOf(const PseudoFiles& files,
                      const std::vector<Membership>& groups) {
  if (files.Exists("/run/.containerenv")) return "podman";
  for (const auto& [trace, name] :
       {std::pair("kubepods", "kubernetes"), std::pair("docker", "docker"),
        std::pair("libpod", "podman"), std::pair("containerd", "containerd"),
        std::pair("lxc", "lxc")}) {
    for (const Membership& group : groups) {
      if (absl::StrContains(group.path, trace)) return name;
    }
  }
  if (files.Exists("/var/run/secrets/kubernetes.io")) return "kubernetes";
  if (files.Exists("/.dockerenv")) return "docker";
  return files.Text("/run/systemd/container");
}

int64_t Limit(__rlimit_resource resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kNoLimit;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

void ReadContainer(const PseudoFiles& files, ContainerReport* report) {
  const std::vector<Membership> groups = Memberships(files);
  report->runtime = RuntimeOf(files, groups);
  for (const Membership& membership : groups) {
    if (membership.controllers.empty()) {
      // Beside version 1 the tree of version 2 is mounted one folder below.
      for (const char* tree : {"", "/unified"}) {
        for (const std::string& group :
             Ancestry(absl::StrCat(kGroups, tree), membership.path)) {
          ReadVersion2(files, group, report);
        }
      }
    }
    for (const std::string& controller : membership.controllers) {
      for (const std::string& group :
           Ancestry(absl::StrCat(kGroups, "/", controller), membership.path)) {
        ReadVersion1(files, controller, group, report);
      }
    }
  }
  report->seccomp = files.Field("/proc/self/status", "Seccomp") == "2";
  report->open_files_limit = Limit(RLIMIT_NOFILE);
  report->file_size_limit_bytes = Limit(RLIMIT_FSIZE);
}

}  // namespace terrace
