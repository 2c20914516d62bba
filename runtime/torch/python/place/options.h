// What the package asks an optimizer or an offloaded model to be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

// What the package asks for; bytes, or kEverything for a budget that holds
// all the state. 0 threads or chunk bytes: the library's default.
struct BindingOptions {
  static constexpr int64_t kEverything = -1;
  int64_t budget_bytes = kEverything;
  bool at_least_minimum = false;  // a budget below the minimum is raised to it
  bool named_tiers = false;       // budgets and paths were said as tiers
  std::vector<std::string> paths;
  std::vector<int64_t> path_budgets;  // of each, 0: what there is; empty: all 0
  std::vector<std::string> mapped_tiers;  // texts of far and persistent memory
  bool unsafe_media = false;              // as Options has it
  std::string engine = "auto";            // or "io_uring" or "threads"
  std::string machine_profile;            // used with paths; empty: none
  // Of an offloaded model: saved tensors of at least so many bytes; 0: none.
  int64_t activations_above = 0;
  int threads = 0;
  int64_t chunk_bytes = 0;
  double max_gradient_norm = 0;
  bool skip_nonfinite = false;
  bool bias_correction = true;
};

// From a JSON object with the names of BindingOptions, all of them optional.
absl::StatusOr<BindingOptions> ReadBindingOptions(const std::string& json);

}  // namespace terrace
