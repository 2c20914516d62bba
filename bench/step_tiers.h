// A step over memory and paced resting tiers below it, mapped ones and disks,
// each with room for 1.3 of its share: how much of the sum of their rates it
// gets.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bench/gate.h"
#include "bench/report/document.h"

namespace terrace::bench {

struct StepTiersOptions {
  int64_t parameters = 0;  // fp32
  int rounds = 0;
  std::string pmem_path;  // where a file plays persistent memory
};

absl::StatusOr<Section> MeasureStepOverTiers(const StepTiersOptions& options,
                                             Gate& gate);

}  // namespace terrace::bench
