#include "machine/findings.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"

namespace terrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kHugeShare = 0.95;
constexpr int64_t kFewFiles = 256;
constexpr int64_t kLittleMemory = kGiB;

bool Has(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// The program that starts containers here, if this is one.
std::string Runner(const ContainerReport& container) {
  if (container.runtime == "podman") return "podman run";
  if (container.runtime == "docker" || container.runtime == "containerd") {
    return "docker run";
  }
  return "";
}

std::string LockedMemoryCommand(const MachineReport& report) {
  const std::string runner = Runner(report.container);
  if (!runner.empty()) return runner + " --ulimit memlock=-1:-1 ...";
  if (report.memory.locked_hard_limit_bytes == kNoLimit) {
    return "ulimit -l unlimited";
  }
  return "echo \"$USER - memlock unlimited\" | sudo tee "
         "/etc/security/limits.d/terrace.conf  # then log in again";
}

// Why there is no ring, told by what would refuse it.
Finding NoRing(const MachineReport& report) {
  const UringReport& uring = report.uring;
  Finding finding{Severity::kSlower, "io_uring",
                  absl::StrCat("refused with ", uring.error), ""};
  if (uring.disabled_setting == 1 || uring.disabled_setting == 2) {
    absl::StrAppend(&finding.what, ": sysctl kernel.io_uring_disabled is ",
                    uring.disabled_setting);
    finding.command = uring.disabled_setting == 1
                          ? "sudo sysctl -w kernel.io_uring_group=$(id -g)"
                          : "sudo sysctl -w kernel.io_uring_disabled=0";
  } else if (report.container.seccomp) {
    absl::StrAppend(&finding.what, ": by a seccomp filter");
    const std::string runner = Runner(report.container);
    if (report.container.runtime == "kubernetes") {
      finding.command =
          "kubectl edit pod  # securityContext.seccompProfile.type: Unconfined";
    } else if (!runner.empty()) {
      finding.command = runner + " --security-opt seccomp=unconfined ...";
    }
  } else if (absl::StartsWith(uring.error, "ENOMEM")) {
    absl::StrAppend(&finding.what, ": its rings count as locked memory");
    finding.command = LockedMemoryCommand(report);
  } else if (absl::StartsWith(uring.error, "ENOSYS")) {
    absl::StrAppend(&finding.what, ": this kernel has none");
  }
  absl::StrAppend(&finding.what,
                  "; threads do the same I/O, for about three times the "
                  "processor time");
  return finding;
}

void DiagnoseEngine(const MachineReport& report,
                    std::vector<Finding>* findings) {
  const UringReport& uring = report.uring;
  if (report.engine.empty()) {
    findings->push_back({Severity::kMissing, "engine",
                         "no I/O at all: " + report.engine_reason, ""});
  }
  if (!uring.available) {
    findings->push_back(NoRing(report));
    return;
  }
  if (!uring.missing_operations.empty()) {
    findings->push_back(
        {Severity::kMissing, "io_uring",
         absl::StrCat("this kernel's ring lacks ",
                      absl::StrJoin(uring.missing_operations, ", "),
                      ": choose the thread engine, or a kernel from 5.6 on"),
         ""});
  }
  if (!Has(uring.setup_flags, "DEFER_TASKRUN")) {
    findings->push_back({Severity::kNote, "io_uring",
                         "completions interrupt compute threads: "
                         "DEFER_TASKRUN came with kernel 6.1",
                         ""});
  }
}

void DiagnoseLockedMemory(const MachineReport& report,
                          std::vector<Finding>* findings) {
  const MemoryReport& memory = report.memory;
  const UringReport& uring = report.uring;
  if (!uring.available || memory.locked_limit_exempt) return;
  if (uring.registered_bytes == uring.registered_bytes_tried &&
      memory.locked_limit_bytes >= kGiB) {
    return;
  }
  findings->push_back(
      {Severity::kSlower, "locked memory",
       absl::StrCat("at most ", FormatBytes(memory.locked_limit_bytes),
                    ", of which ", FormatBytes(uring.registered_bytes),
                    " could be registered: larger buffers are not. Direct "
                    "I/O, huge pages, the ring and its files stay: the same "
                    "bandwidth for about 2 ms of processor time more a GiB"),
       LockedMemoryCommand(report)});
}

std::string SetTransparent(const char* name, const char* value) {
  return absl::StrCat("echo ", value, " | sudo tee ",
                      "/sys/kernel/mm/transparent_hugepage/", name);
}

void DiagnoseMemory(const MachineReport& report,
                    std::vector<Finding>* findings) {
  const MemoryReport& memory = report.memory;
  const std::string cost =
      "; buffers in 4 KiB pages cost a disk's bandwidth (up to 3 times) and "
      "processor time (up to 9 times)";
  const auto add = [&](const std::string& what, const std::string& command) {
    findings->push_back({Severity::kSlower, "huge pages", what, command});
  };
  if (memory.transparent == "never") {
    add("transparent huge pages are off" + cost,
        SetTransparent("enabled", "madvise"));
  } else if (memory.transparent.empty()) {
    add("this kernel has no transparent huge pages" + cost, "");
  } else if (memory.huge_page_share >= 0 &&
             memory.huge_page_share < kHugeShare) {
    const bool never = memory.transparent_defrag == "never";
    add(absl::StrFormat("only %.0f %% of a probe was in huge pages: %s%s",
                        100 * memory.huge_page_share,
                        never ? "the kernel may not make room for them"
                              : "free memory is in pieces",
                        cost),
        never ? SetTransparent("defrag", "madvise")
              : "echo 1 | sudo tee /proc/sys/vm/compact_memory");
  }
  if (memory.available_bytes >= 0 && memory.available_bytes < kLittleMemory) {
    findings->push_back(
        {Severity::kSlower, "memory",
         absl::StrCat("only ", FormatBytes(memory.available_bytes),
                      " can be had without pushing others out"),
         ""});
  }
}

void DiagnoseContainer(const MachineReport& report,
                       std::vector<Finding>* findings) {
  const ContainerReport& container = report.container;
  const std::string runner = Runner(container);
  const auto add = [&](Severity severity, const std::string& what,
                       const std::string& command) {
    findings->push_back({severity, "limits", what, command});
  };
  if (container.memory_limit_bytes < report.memory.total_bytes) {
    add(Severity::kNote,
        absl::StrCat("a control group allows ",
                     FormatBytes(container.memory_limit_bytes),
                     " of memory, of which ",
                     FormatBytes(container.memory_used_bytes),
                     " is used: budgets must stay below"),
        runner.empty() ? "" : runner + " --memory=BYTES ...");
  }
  if (container.cpu_limit > 0 && container.cpu_limit < report.processor.cpus) {
    add(Severity::kSlower,
        absl::StrFormat("%d processors share the time of %.3g: more threads "
                        "than that are stopped in turn",
                        report.processor.cpus, container.cpu_limit),
        runner.empty()
            ? ""
            : absl::StrCat(runner, " --cpus=", report.processor.cpus, " ..."));
  }
  if (container.file_size_limit_bytes != kNoLimit) {
    add(Severity::kSlower,
        absl::StrCat("files may have ",
                     FormatBytes(container.file_size_limit_bytes),
                     " at most: state beyond it is refused"),
        "ulimit -f unlimited");
  }
  if (container.open_files_limit < kFewFiles) {
    add(Severity::kSlower,
        absl::StrCat("only ", container.open_files_limit,
                     " files may be open at once"),
        "ulimit -n 1024");
  }
}

void DiagnoseProcessor(const ProcessorReport& processor,
                       std::vector<Finding>* findings) {
  if (processor.instruction_set == "scalar") {
    findings->push_back({Severity::kSlower, "processor",
                         "no vector instructions that the kernels know: the "
                         "optimizer's step runs one number at a time",
                         ""});
  }
  if (!processor.topology_error.empty()) {
    findings->push_back({Severity::kSlower, "processor",
                         processor.topology_error + ": threads are not bound",
                         "unset HWLOC_SYNTHETIC HWLOC_XMLFILE"});
  }
}

void DiagnoseGpu(const MachineReport& report, std::vector<Finding>* findings) {
  const GpuReport& gpu = report.gpu;
  const std::string runner = Runner(report.container);
  if (gpu.driver_version.empty()) {
    const bool has_gpu = gpu.display_controllers > 0;
    findings->push_back(
        {has_gpu ? Severity::kSlower : Severity::kNote, "gpu",
         has_gpu ? "an NVIDIA GPU is on the PCI bus, but no driver is loaded"
                 : "none with an NVIDIA driver: tensors live in host memory "
                   "and on the paths",
         has_gpu ? "sudo apt-get install nvidia-driver" : ""});
  } else if (!gpu.has_cuda) {
    findings->push_back({Severity::kSlower, "gpu",
                         "the driver is loaded, but " + gpu.cuda_error,
                         runner.empty() ? "sudo apt-get install libcuda1"
                                        : runner + " --gpus all ..."});
  }
}

void DiagnosePaths(const MachineReport& report,
                   std::vector<Finding>* findings) {
  const bool names_tiers = !report.tiers.empty() && report.tiers[0].named;
  if (report.paths.empty() && !names_tiers) {
    findings->push_back({Severity::kNote, "paths",
                         "none was named, so no disk was looked at",
                         "terrace doctor DIRECTORY..."});
  }
  std::vector<std::pair<std::string, std::string>> owners;  // drive, path
  for (const PathReport& path : report.paths) {
    DiagnosePath(path, findings);
    if (!path.status.ok()) continue;
    for (const DriveReport& drive : path.drives) {
      const auto same = [&](const auto& owner) {
        return owner.first == drive.name;
      };
      const auto found = std::find_if(owners.begin(), owners.end(), same);
      if (found != owners.end() && found->second != path.path) {
        findings->push_back(
            {Severity::kNote, path.path,
             absl::StrCat("on the same drive, ", drive.name, ", as ",
                          found->second, ": together they are no faster"),
             ""});
      }
      owners.emplace_back(drive.name, path.path);
    }
  }
}

}  // namespace

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kSlower:
      return "slower";
    case Severity::kMissing:
      return "missing";
  }
  return "";
}

std::vector<Finding> Diagnose(const MachineReport& report) {
  std::vector<Finding> findings;
  DiagnoseEngine(report, &findings);
  DiagnoseMemory(report, &findings);
  DiagnoseLockedMemory(report, &findings);
  DiagnosePaths(report, &findings);
  for (const TierReport& tier : report.tiers) {
    DiagnoseTier(tier, report, &findings);
  }
  DiagnoseContainer(report, &findings);
  DiagnoseProcessor(report.processor, &findings);
  DiagnoseGpu(report, &findings);
  // Two paths may say the same of one drive.
  std::set<std::pair<std::string, std::string>> seen;
  const auto repeats = [&](const Finding& finding) {
    return !seen.insert({finding.subject, finding.what}).second;
  };
  std::vector<Finding> once;
  for (Finding& finding : findings) {
    if (!repeats(finding)) once.push_back(std::move(finding));
  }
  std::stable_sort(once.begin(), once.end(),
                   [](const Finding& a, const Finding& b) {
                     return a.severity > b.severity;
                   });
  return once;
}

}  // namespace terrace
