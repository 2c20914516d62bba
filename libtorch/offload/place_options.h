// Where a model, or an optimizer's state, may be: what its user asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/options.h"
#include "terrace/tier.h"

namespace terrace {

// Bytes, or kEverything for a budget that holds all of it. 0 threads: the
// library's default.
struct PlaceOptions {
  static constexpr int64_t kEverything = -1;
  int64_t budget_bytes = kEverything;
  std::string memory_place;       // a node, "node1"; empty: the nearest
  bool at_least_minimum = false;  // a budget below the minimum is raised to it
  bool named_tiers = false;       // budgets and paths were said as tiers
  std::vector<std::string> paths;
  std::vector<int64_t> path_budgets;  // of each, 0: what there is; empty: all 0
  std::vector<TierSpec> mapped_tiers;  // far and persistent memory
  bool unsafe_media = false;           // as Options has it
  EngineKind engine = EngineKind::kAuto;
  std::string machine_profile;  // used with paths; empty: none
  // Of an offloaded model: saved tensors of at least so many bytes; 0: none.
  int64_t activations_above = 0;
  int threads = 0;
};

}  // namespace terrace
