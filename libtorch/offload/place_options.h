// The places that a user asks for, where a model or an optimizer's state may
// be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/options.h"
#include "terrace/tier.h"

namespace terrace {

// The budget is in bytes, or kEverything for a budget that holds all of the
// model or state. 0 threads are the library's default.
struct PlaceOptions {
  static constexpr int64_t kEverything = -1;
  int64_t budget_bytes = kEverything;
  std::string memory_place;  // a node, "node1"; empty: the nearest
  // The accelerator whose tensors these are, "cuda:0", or empty: the CPU's. The
  // budget is of its memory then, and the CPU's memory is below it.
  std::string device;
  int64_t below_device_bytes = kEverything;  // of the CPU's memory
  bool below_device_is_share = false;        // likewise raised to the minimum
  bool at_least_minimum = false;  // a budget below the minimum is raised to it
  bool named_tiers = false;       // budgets and paths were said as tiers
  std::vector<std::string> paths;
  std::vector<int64_t> path_budgets;   // 0: all that there is; empty: all 0
  std::vector<TierSpec> mapped_tiers;  // far and persistent memory
  bool unsafe_media = false;           // as Options::unsafe_media
  // The socket of a host's daemon, which has the memory and all that is below
  // it; empty: none.
  std::string daemon;
  std::string job;  // by which of the user's jobs there; empty: no name
  EngineKind engine = EngineKind::kAuto;
  std::string machine_profile;  // used with paths; empty: none
  // Saved tensors of an offloaded model go below from this many bytes on; with
  // 0 none does.
  int64_t activations_above = 0;
  int threads = 0;

  // Whether there is anything beside the CPU's memory.
  bool has_below_memory() const {
    return !paths.empty() || !mapped_tiers.empty() || !daemon.empty();
  }
  // Whether there is anything below the memory that the budget is of.
  bool has_below() const { return has_below_memory() || !device.empty(); }
};

}  // namespace terrace
