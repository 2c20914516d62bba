#include "tests/sim/drawn_world.h"

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// One to three, each with room for a few tensors up to nearly all.
std::vector<TierSpec> DrawTiers(uint64_t seed) {
  std::mt19937_64 random(seed * 78);
  std::vector<TierSpec> tiers;
  for (uint64_t i = 0; i < 1 + random() % 3; ++i) {
    const TierKind kind = random() % 2 == 0 ? TierKind::kFar : TierKind::kPmem;
    tiers.push_back({kind, absl::StrCat("mapped ", i),
                     static_cast<int64_t>(2 + random() % 60) * 4096});
  }
  return tiers;
}

// Of each path. Together they hold all tensors and what is on its way; of a few
// one may be full at any time.
std::vector<int64_t> DrawBudgets(uint64_t seed, int paths) {
  std::mt19937_64 random(seed * 80);
  const int least = paths == 1 ? 120 : 60;
  std::vector<int64_t> budgets;
  for (int i = 0; i < paths; ++i) {
    const auto pages = least + static_cast<int64_t>(random() % 100);
    budgets.push_back(pages * 4096);
  }
  return budgets;
}

}  // namespace

WorldOptions DrawWorld(uint64_t seed, Trouble trouble, Transcript* transcript,
                       Tiers tiers) {
  std::mt19937_64 random(seed * 77);
  WorldOptions options;
  options.seed = seed;
  options.transcript = transcript;
  if (tiers != Tiers::kDisks) {
    options.mapped = DrawTiers(seed);
    options.threads = static_cast<int>(1 + seed % 4);
  }
  if (tiers == Tiers::kDevice) {
    std::mt19937_64 device(seed * 79);
    options.hbm_bytes = static_cast<int64_t>(8 + device() % 40) * 4096;
  }
  if (tiers == Tiers::kSeveral) {
    std::mt19937_64 several(seed * 81);
    options.devices = 2;
    options.hbm_bytes = static_cast<int64_t>(8 + several() % 40) * 4096;
    for (uint64_t i = 0; i < 1 + several() % 2; ++i) {
      options.other_memories.push_back(
          static_cast<int64_t>(16 + several() % 40) * 4096);
    }
  }
  options.budget_bytes = static_cast<int64_t>(24 + random() % 60) * 4096;
  options.paths = 1 + static_cast<int>(random() % 3);
  if (trouble == Trouble::kRefusal) options.paths = 2 + options.paths % 2;
  // What one path refuses all others have room for.
  if (tiers != Tiers::kDisks && trouble != Trouble::kRefusal) {
    options.path_budgets = DrawBudgets(seed, options.paths);
  }
  options.eviction =
      random() % 2 == 0 ? EvictionKind::kLru : EvictionKind::kNextUse;
  options.prefetch = random() % 4 != 0;
  options.task_cost = absl::Microseconds(random() % 3 * 20);
  options.task_spread = absl::Microseconds(random() % 2 * 100);
  options.io_timeout = absl::Milliseconds(200);
  options.io.piece_bytes = 4096 << random() % 4;
  options.io.in_flight_bytes = options.io.piece_bytes * (1 + random() % 4);
  options.io.adapts = random() % 2 == 0;
  return options;
}

}  // namespace terrace
