// How many seeds a simulation runs: its own number, or that of the command
// line: --seeds=N, from --first_seed=S on; and of how many operations in one
// run where that is not given: --operations=N. Set by main before the tests
// run.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace terrace {

struct SeedFlags {
  uint64_t first = 1;
  uint64_t count = 0;  // 0: as many as each simulation says itself
  uint64_t operations = 0;
};
SeedFlags& seed_flags();

// Runs body(seed) for `count` seeds, or as many as the command line says;
// names the seed in failures and stops at the first that fails.
void ForEachSeed(uint64_t count, absl::FunctionRef<void(uint64_t)> body);

}  // namespace terrace
