// What stats() returns in Python, as it comes: a counter that is added here is
// in it. Each is a JSON object.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "terrace/optimizer.h"
#include "terrace/stats.h"

namespace terrace {

class OffloadPlace;

// A step's seconds and bytes, added to those of the steps before.
void Accumulate(const StepReport& report, StepReport& total);

// Of an optimizer: `last` is of the last step, `total` sums over all of them;
// `waited` for updates that went on after them.
std::string StatsAsJson(const Stats& stats, const OptimizerPlan& plan,
                        int64_t steps, const StepReport& last,
                        const StepReport& total, absl::Duration waited);

// Of an offloaded model.
std::string OffloadStatsAsJson(OffloadPlace& place);

}  // namespace terrace
