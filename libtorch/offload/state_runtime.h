// Where the state of one optimizer lies: in memory, with the threads that all
// such optimizers of the process share, or behind a budget, in a Runtime with
// paths and a mover of its own, or in that of the offloaded model that it
// joined.
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
#include "absl/types/span.h"
#include "libtorch/offload/beside_budget.h"
#include "libtorch/offload/offload_place.h"
#include "libtorch/offload/place_options.h"
#include "terrace/memory_runtime.h"
#include "terrace/optimizer.h"

namespace terrace {

class StateRuntime {
 public:
  // For state of these; sets the sizes of `options` that go with it.
  // ResourceExhausted: a budget below the minimum, which is named, or no
  // memory; InvalidArgument: not all of it fits, and there are no paths. Far
  // and persistent memory must be there whether the state needs it or not.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> Open(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      OptimizerOptions& options);
  // The same beside an offloaded model, in its Runtime and its budget. Of
  // `asked` the places are the model's.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> Join(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      std::shared_ptr<OffloadPlace> place, OptimizerOptions& options);
  ~StateRuntime();

  // Before parameters are added to those that there are: ResourceExhausted
  // where all state is to be in memory and cannot, or its share of a model's
  // budget.
  absl::Status Extend(absl::Span<const ParameterSpec> specs,
                      absl::Span<const ParameterSpec> added);
  // After that: what was not needed, because less was or none were added, is
  // given back.
  void EndExtension(bool is_added);

  // A model's Runtime goes on.
  absl::Status Close(Time deadline);
  Runtime& runtime() {
    return place_ == nullptr ? *runtime_ : place_->runtime();
  }
  // The runtime's; with the budget that was given also where all of the state
  // is in memory, which takes no more than that. No disk is opened then.
  Stats GetStats() const;

 private:
  StateRuntime() = default;

  // Where all of the model is in memory: the state too, as far as it fits.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> OpenBeside(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      const OffloadPlace& place, OptimizerOptions& options);
  absl::Status OpenInMemory(const PlaceOptions& asked, int64_t state_bytes);
  // Of the budget beside a model so much from now on; more may be refused.
  bool TakeBeside(int64_t bytes);
  // That may be in memory.
  int64_t most_bytes() const;

  std::unique_ptr<Runtime> runtime_;  // null: that of
  std::shared_ptr<OffloadPlace> place_;
  OffloadPlace::Share share_;
  OffloadPlace::Share before_extension_;
  MemoryRuntime* memory_ = nullptr;  // the same; null: it has paths
  int64_t most_bytes_ = 0;           // where it is beside no model
  std::shared_ptr<BesideBudget> beside_;
  int64_t taken_bytes_ = 0;  // of that
  int64_t taken_before_extension_ = 0;
};

}  // namespace terrace
