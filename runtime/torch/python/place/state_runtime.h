// Where the state of one optimizer lies: in memory, with the threads that all
// such optimizers of the process share, or behind a budget, in a Runtime with
// paths and a mover of its own.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "terrace/memory_runtime.h"
#include "terrace/optimizer.h"

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

// A Runtime of that much memory over the tiers below that were asked for.
// InvalidArgument: one that is none; else what Runtime::Create says.
absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const BindingOptions& asked,
                                                   int64_t budget_bytes);

class StateRuntime {
 public:
  // For state of these; sets the sizes of `options` that go with it.
  // ResourceExhausted: a budget below the minimum, which is named, or no
  // memory; InvalidArgument: not all of it fits, and there are no paths. Far
  // and persistent memory must be there whether the state needs it or not.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> Open(
      const std::vector<ParameterSpec>& specs, const BindingOptions& asked,
      OptimizerOptions& options);

  // Before parameters are added to those that there are: ResourceExhausted
  // where all state is to be in memory and cannot.
  absl::Status Extend(const std::vector<ParameterSpec>& specs,
                      const std::vector<ParameterSpec>& added);
  // After an addition that failed, or of which less was needed.
  void ReleaseUnused();

  absl::Status Close(Time deadline) { return runtime_->Close(deadline); }
  Runtime& runtime() { return *runtime_; }
  // The runtime's; with the budget that was given also where all of the state
  // is in memory, which takes no more than that. No disk is opened then.
  Stats GetStats() const;

 private:
  StateRuntime() = default;

  absl::Status OpenInMemory(int threads, int64_t state_bytes);

  std::unique_ptr<Runtime> runtime_;
  MemoryRuntime* memory_ = nullptr;  // the same; null: it has paths
  int64_t most_bytes_ = 0;           // that may be in memory
};

}  // namespace terrace
