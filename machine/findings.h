// What a machine's facts mean for Terrace, and the commands that mend them.
// Pure: the same report gives the same findings. Thread-safe.
#pragma once

#include <vector>

#include "terrace/machine.h"

namespace terrace {

// Worst first, else in the order of the report. Reads everything but
// report.findings.
std::vector<Finding> Diagnose(const MachineReport& report);

// Those of one path, in the order of their weight.
void DiagnosePath(const PathReport& path, std::vector<Finding>* findings);

// Those of one of the report's tiers, in the order of their weight.
void DiagnoseTier(const TierReport& tier, const MachineReport& report,
                  std::vector<Finding>* findings);

}  // namespace terrace
