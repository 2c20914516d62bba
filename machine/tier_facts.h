// What a tier would be made of on this machine: a memory node, persistent
// memory, a disk, a GPU. Some MiB of memory are taken for a moment to see where
// they come from and whether they can be pinned; nothing stays taken.
// Thread-safe; what cannot be read stays unknown, and why a tier cannot be had
// is its status.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "machine/pseudo_files.h"
#include "terrace/machine.h"
#include "tiers/memory/topology.h"

namespace terrace {

// Each memory node: dram with processors, far memory without.
std::vector<TierSpec> NodesAsTiers(const Topology& topology);

// Everything of a TierReport but `named`, from the report's memory, GPUs and
// paths, which are filled in. `near_node` is the one that memory itself comes
// from; -1: the kernel chooses. A budget is not looked at.
TierReport ProbeTier(const PseudoFiles& files, const Topology& topology,
                     int near_node, const MachineReport& report,
                     const TierSpec& tier);

// Of a device: the status of what it gives, and can_pin.
absl::Status TryDevice(Device& device, TierReport* report);

// Fills in report->tiers, from the rest: those that were asked about, else all
// memory nodes.
void ReadTiers(const PseudoFiles& files, const std::vector<TierSpec>& tiers,
               MachineReport* report);

}  // namespace terrace
