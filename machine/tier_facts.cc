#include "machine/tier_facts.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aio/uring_probe.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "kernels/cuda/open_cuda.h"
#include "machine/storage.h"
#include "tiers/memory/far_medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/pmem/pmem_probe.h"

namespace terrace {
namespace {

constexpr int64_t kTierProbeBytes = 8 << 20;
// A huge page: less than the 8 MiB that an ordinary user may lock.
constexpr size_t kPinBytes = 2 << 20;
constexpr char kDaxDevices[] = "/sys/bus/dax/devices";

const NumaNode* FindNode(const Topology& topology, int index) {
  for (const NumaNode& node : topology.nodes) {
    if (node.os_index == index) return &node;
  }
  return nullptr;
}

// The device that became this node's memory; empty: none says so.
std::string DaxDeviceOf(const PseudoFiles& files, int node) {
  for (const std::string& name : files.Names(kDaxDevices)) {
    const std::string device = absl::StrCat(kDaxDevices, "/", name);
    if (files.Number(device + "/target_node") == node) return name;
  }
  return "";
}

// Whether `bytes`, which are populated, can be pinned and stay where they are.
void Pin(absl::Span<std::byte> bytes, TierReport* report) {
  const absl::StatusOr<std::vector<int>> before = FindNodes(bytes);
  const absl::StatusOr<std::string> refused = TryPin(bytes);
  if (!refused.ok()) {
    report->pin_error = std::string(refused.status().message());
    return;
  }
  const absl::StatusOr<std::vector<int>> after = FindNodes(bytes);
  report->pin_error = *refused;
  // Where the kernel does not say, they count as having stayed.
  if (refused->empty() && before.ok() && after.ok() && *before != *after) {
    report->pin_error =
        absl::StrCat("its pages left node", absl::StrJoin(*before, ", node"),
                     " for node", absl::StrJoin(*after, ", node"));
  }
  report->can_pin = report->pin_error.empty() ? 1 : 0;
}

// Takes some memory and looks at it.
absl::Status TryMemory(int node, TierReport* report) {
  const auto arena =
      HostArena::Create({.size_bytes = kTierProbeBytes, .numa_node = node});
  if (!arena.ok()) return arena.status();
  report->page_bytes = sysconf(_SC_PAGESIZE);
  report->huge_page_share = (*arena)->huge_page_share();
  report->found_node = (*arena)->found_node();
  Pin((*arena)->bytes().first(kPinBytes), report);
  return absl::OkStatus();
}

void DescribeNode(const PseudoFiles& files, const NumaNode& node,
                  const MemoryReport& memory, TierReport* report) {
  report->size_bytes = node.memory_bytes;
  report->memory_only = node.cpus.empty();
  report->movable = node.movable;
  report->dax_device = DaxDeviceOf(files, node.os_index);
  const absl::StatusOr<int64_t> available = AvailableNodeBytes(node.os_index);
  if (!available.ok()) return;
  report->free_bytes = *available;
  if (memory.available_bytes >= 0) {
    report->free_bytes = std::min(*available, memory.available_bytes);
  }
}

absl::Status ProbeMemory(const PseudoFiles& files, const Topology& topology,
                         int near_node, const MemoryReport& memory,
                         TierReport* report) {
  const int index = NodeOf(report->tier);
  if (index < 0) {
    report->size_bytes = memory.total_bytes;
    report->free_bytes = memory.available_bytes;
    return TryMemory(-1, report);
  }
  const NumaNode* const node = FindNode(topology, index);
  if (node != nullptr) DescribeNode(files, *node, memory, report);
  if (report->tier.kind == TierKind::kFar) {
    const absl::Status checked =
        CheckFarNode(topology, {.node = index, .near_node = near_node});
    if (!checked.ok()) return checked;
  }
  return TryMemory(index, report);
}

void DescribeMount(const PathReport& path, TierReport* report) {
  report->file_system = path.file_system;
  report->source = path.source;
  report->mount_point = path.mount_point;
}

absl::Status ProbePersistent(const PseudoFiles& files, TierReport* report) {
  const std::string& place = report->tier.place;
  struct stat found = {};
  struct statvfs space = {};
  if (stat(place.c_str(), &found) == 0 && !S_ISCHR(found.st_mode)) {
    DescribeMount(IdentifyPath(files, place), report);
    if (statvfs(place.c_str(), &space) == 0) {
      report->free_bytes =
          static_cast<int64_t>(space.f_bavail * space.f_frsize);
    }
  }
  const absl::StatusOr<PmemFacts> facts = ProbePmem(
      place, [&](absl::Span<std::byte> bytes) { Pin(bytes, report); });
  if (!facts.ok()) return facts.status();
  report->file_system = facts->file_system;
  report->granularity = StoreGranularityName(facts->granularity);
  report->granularity_cause = facts->cause;
  report->size_bytes = facts->size_bytes;
  report->bad_bytes = facts->bad_bytes;
  report->unsafe_shutdowns = facts->unsafe_shutdowns;
  return absl::OkStatus();
}

absl::Status ProbeDisk(const std::vector<PathReport>& paths,
                       TierReport* report) {
  for (const PathReport& path : paths) {
    if (path.path != report->tier.place) continue;
    DescribeMount(path, report);
    report->size_bytes = path.total_bytes;
    report->free_bytes = path.free_bytes;
    return path.status;
  }
  return absl::NotFoundError(
      absl::StrCat("path '", report->tier.place, "' was not looked at"));
}

absl::Status CheckPersistent(const TierSpec& tier, bool unsafe_media) {
  TERRACE_ASSIGN_OR_RETURN(const PmemFacts facts, ProbePmem(tier.place));
  if (facts.granularity == StoreGranularity::kPage && !unsafe_media) {
    return absl::UnavailableError(
        absl::StrCat(facts.file, ": no persistent memory: ", facts.file_system,
                     ", granularity ", StoreGranularityName(facts.granularity),
                     " (", facts.cause, ")"));
  }
  if (tier.budget_bytes <= facts.size_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(facts.file, ": a budget of ", tier.budget_bytes,
                   " bytes, and there are ", facts.size_bytes));
}

absl::Status CheckMapped(const Topology& topology, const TierSpec& tier,
                         int near_node, bool unsafe_media) {
  if (tier.kind == TierKind::kPmem) return CheckPersistent(tier, unsafe_media);
  return CheckFarNode(topology, {.node = NodeOf(tier),
                                 .budget_bytes = tier.budget_bytes,
                                 .near_node = near_node});
}

// That memory itself comes from.
int NearNode(const Topology& topology, const std::vector<TierSpec>& tiers) {
  int near_node = NearestNode(topology, topology.cpus);
  for (const TierSpec& tier : tiers) {
    if (tier.kind == TierKind::kDram && NodeOf(tier) >= 0) {
      near_node = NodeOf(tier);
    }
  }
  return near_node;
}

std::string TextOf(const GpuReport& gpus) {
  std::vector<std::string> there;
  for (const GpuDeviceReport& device : gpus.devices) {
    there.push_back(absl::StrCat(device.name.empty() ? "a GPU" : device.name,
                                 " with ", FormatBytes(device.memory_bytes)));
  }
  return there.empty() ? "no GPU with a driver" : absl::StrJoin(there, ", ");
}

// By CUDA's module.
absl::Status ProbeDeviceMemory(const GpuReport& gpus, TierReport* report) {
  const absl::StatusOr<std::shared_ptr<Device>> device =
      OpenCuda(report->tier.place);
  if (!device.ok()) {
    return Reworded(device.status(),
                    absl::StrCat(absl::string_view(device.status().message()),
                                 "; this machine has ", TextOf(gpus)));
  }
  // Of several nothing tells which CUDA calls the first.
  if (gpus.devices.size() == 1) {
    report->size_bytes = gpus.devices.front().memory_bytes;
  }
  return TryDevice(**device, report);
}

}  // namespace

std::vector<TierSpec> NodesAsTiers(const Topology& topology) {
  std::vector<TierSpec> tiers;
  for (const NumaNode& node : topology.nodes) {
    tiers.push_back(
        {.kind = node.cpus.empty() ? TierKind::kFar : TierKind::kDram,
         .place = absl::StrCat("node", node.os_index)});
  }
  return tiers;
}

absl::Status TryDevice(Device& device, TierReport* report) {
  const absl::StatusOr<DeviceMemory> memory = device.Allocate(kTierProbeBytes);
  if (!memory.ok()) return memory.status();
  absl::StatusOr<std::unique_ptr<HostArena>> arena =
      HostArena::Create({.size_bytes = kTierProbeBytes});
  if (!arena.ok()) return arena.status();
  const std::shared_ptr<HostArena> pages = *std::move(arena);
  const absl::Status pinned = device.Pin(pages, pages->bytes()).status();
  report->can_pin = pinned.ok() ? 1 : 0;
  report->pin_error = std::string(pinned.message());
  return absl::OkStatus();
}

TierReport ProbeTier(const PseudoFiles& files, const Topology& topology,
                     int near_node, const MachineReport& report,
                     const TierSpec& tier) {
  TierReport found;
  found.tier = tier;
  switch (tier.kind) {
    case TierKind::kHbm:
      found.status = ProbeDeviceMemory(report.gpu, &found);
      break;
    case TierKind::kDram:
    case TierKind::kFar:
      found.status =
          ProbeMemory(files, topology, near_node, report.memory, &found);
      break;
    case TierKind::kPmem:
      found.status = ProbePersistent(files, &found);
      break;
    case TierKind::kDisk:
      found.status = ProbeDisk(report.paths, &found);
      break;
  }
  return found;
}

absl::Status CheckMappedTiers(const std::vector<TierSpec>& tiers,
                              bool unsafe_media) {
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  const int near_node = NearNode(topology, tiers);
  for (const TierSpec& tier : tiers) {
    if (tier.kind != TierKind::kFar && tier.kind != TierKind::kPmem) continue;
    const absl::Status checked =
        CheckMapped(topology, tier, near_node, unsafe_media);
    if (checked.ok()) continue;
    return Reworded(checked,
                    absl::StrCat("tier '", TierText(tier),
                                 "': ", absl::string_view(checked.message())));
  }
  return absl::OkStatus();
}

void ReadTiers(const PseudoFiles& files, const std::vector<TierSpec>& tiers,
               MachineReport* report) {
  const absl::StatusOr<Topology> read = ReadTopology();
  const Topology topology = read.ok() ? *read : Topology();
  const int near_node = NearNode(topology, tiers);
  for (const TierSpec& tier : tiers.empty() ? NodesAsTiers(topology) : tiers) {
    TierReport& added = report->tiers.emplace_back(
        ProbeTier(files, topology, near_node, *report, tier));
    added.named = !tiers.empty();
    // Of a machine that cannot be read nothing is known of its nodes.
    if (!read.ok() && NodeOf(tier) >= 0) added.status = read.status();
  }
}

}  // namespace terrace
