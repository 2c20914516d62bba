#include <sys/utsname.h>

#include <algorithm>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "aio/uring_probe.h"
#include "kernels/instruction_set.h"
#include "machine/facts.h"
#include "machine/findings.h"
#include "machine/storage.h"
#include "machine/tier_facts.h"
#include "terrace/machine.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

void ReadProcessor(const PseudoFiles& files, ProcessorReport* report) {
  report->model = files.Field("/proc/cpuinfo", "model name");
  report->instruction_sets = AvailableInstructionSets();
  report->instruction_set = InstructionSetName();
  const absl::StatusOr<Topology> topology = ReadTopology();
  if (!topology.ok()) {
    report->topology_error = std::string(topology.status().message());
    return;
  }
  report->cpus = static_cast<int>(topology->cpus.size());
  report->cores = topology->cores;
  for (const NumaNode& node : topology->nodes) {
    report->nodes.push_back({.index = node.os_index,
                             .memory_bytes = node.memory_bytes,
                             .cpus = node.cpus});
  }
}

void ReadEngine(const PseudoFiles& files, MachineReport* report) {
  report->uring = ProbeUring();
  const int64_t disabled = files.Number("/proc/sys/kernel/io_uring_disabled");
  report->uring.disabled_setting = static_cast<int>(disabled);
  const auto engine = MakeEngine(EngineKind::kAuto);
  if (!engine.ok()) {
    report->engine_reason = std::string(engine.status().message());
    return;
  }
  const EngineInfo info = (*engine)->info();
  report->engine = info.name;
  report->engine_reason = info.reason;
}

// The paths, and those of disks that are named as tiers, once each.
std::vector<std::string> PathsOf(const std::vector<std::string>& paths,
                                 const std::vector<TierSpec>& tiers) {
  std::vector<std::string> all = paths;
  for (const TierSpec& tier : tiers) {
    if (tier.kind == TierKind::kDisk &&
        std::find(all.begin(), all.end(), tier.place) == all.end()) {
      all.push_back(tier.place);
    }
  }
  return all;
}

}  // namespace

MachineReport ProbeMachine(const std::vector<std::string>& paths,
                           const std::vector<TierSpec>& tiers) {
  const PseudoFiles files("");
  MachineReport report;
  report.machine_id = files.Text("/etc/machine-id");
  utsname names = {};
  if (uname(&names) == 0) {
    report.kernel = names.release;
    report.architecture = names.machine;
  }
  ReadProcessor(files, &report.processor);
  ReadMemory(files, &report.memory);
  report.memory.huge_page_share = ProbeHugePageShare();
  ReadEngine(files, &report);
  ReadContainer(files, &report.container);
  ReadGpu(files, GpuLibraries(), &report.gpu);
  for (const std::string& path : PathsOf(paths, tiers)) {
    report.paths.push_back(ProbePath(files, path));
  }
  ReadTiers(files, tiers, &report);
  report.findings = Diagnose(report);
  return report;
}

}  // namespace terrace
