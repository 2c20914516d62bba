// The place where the state of one optimizer lies: in memory, with the threads
// that all such optimizers of the process share, or behind a budget, in a
// Runtime with paths and a mover of its own, or in the Runtime of the offloaded
// model that the optimizer joined.
//
// One thread at a time may use it.
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
  // Opens a place for the state of these parameters, and sets the sizes of
  // `options` that go with it. Returns ResourceExhausted for a budget below the
  // minimum, which the message names, or when there is no memory, and
  // InvalidArgument when not all of the state fits and there is no tier below.
  // Far and persistent memory must be there whether the state needs it or not.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> Open(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      OptimizerOptions& options);
  // Opens the place beside an offloaded model, in its Runtime and its budget.
  // The places are the model's, whatever `asked` says.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> Join(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      std::shared_ptr<OffloadPlace> place, OptimizerOptions& options);
  ~StateRuntime();

  // Makes room before parameters are added to those of `specs`. Returns
  // ResourceExhausted when all state is to be in memory and does not fit, or
  // when a joined model has no room for its share.
  absl::Status Extend(absl::Span<const ParameterSpec> specs,
                      absl::Span<const ParameterSpec> added);
  // Ends Extend. Room that was not needed, because the parameters took less or
  // were not added, is given back.
  void EndExtension(bool is_added);

  // Closes the Runtime, unless it is a model's, which goes on.
  absl::Status Close(Time deadline);
  Runtime& runtime() {
    return place_ == nullptr ? *runtime_ : place_->runtime();
  }
  // Returns the Runtime's statistics, with the budget that was given also where
  // all of the state is in memory and takes no more than that budget. No disk
  // is opened then.
  Stats GetStats() const;

 private:
  StateRuntime() = default;

  // Joins a model that is all in memory: the state is in memory too, as far as
  // it fits.
  static absl::StatusOr<std::unique_ptr<StateRuntime>> OpenBeside(
      const std::vector<ParameterSpec>& specs, const PlaceOptions& asked,
      const OffloadPlace& place, OptimizerOptions& options);
  absl::Status OpenInMemory(const PlaceOptions& asked, int64_t state_bytes);
  // From now on `bytes` of the budget beside a model are taken. Returns false
  // when these are more than before, and not so many are left.
  bool TakeBeside(int64_t bytes);
  // The most bytes of state that may be in memory.
  int64_t most_bytes() const;

  std::unique_ptr<Runtime> runtime_;  // null: it is the model's
  std::shared_ptr<OffloadPlace> place_;
  OffloadPlace::Share share_;
  OffloadPlace::Share before_extension_;
  MemoryRuntime* memory_ = nullptr;  // runtime_; null: it has tiers below
  int64_t most_bytes_ = 0;           // where there is no beside_
  std::shared_ptr<BesideBudget> beside_;
  int64_t taken_bytes_ = 0;  // of beside_
  int64_t taken_before_extension_ = 0;
};

}  // namespace terrace
