// What tests/checkpoint's saver program trains, and what it must then have:
// the same numbers on both sides.
#pragma once

#include "tests/checkpoint/job.h"

namespace terrace {

inline constexpr uint64_t kSaverSeed = 2026;
inline constexpr Arrangement kSaverArrangement = {
    .name = "Saver", .files = false, .budget_bytes = 256 << 10};

inline Model SaverModel() { return Model::Mixed(kSaverSeed); }

// "step" of the values.
inline constexpr char kSaverStep[] = "step";

// They have one that is long, so that a save writes all kinds of files.
inline CheckpointValues SaverValues(int64_t step) {
  return {{kSaverStep, step},
          {"long",
           CheckpointBytes{std::string(static_cast<size_t>(5000 + step % 100),
                                       static_cast<char>(step))}}};
}

// Of a checkpoint: those, and checkpoint.json.
inline constexpr size_t kSaverFiles = 4;

}  // namespace terrace
