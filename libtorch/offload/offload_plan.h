// How much memory a model's parameters get that live below, and how it is
// shared out between the window that operations use and what is on its way.
// Pure functions over sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"

namespace terrace {

struct OffloadPlan {
  int64_t storages = 0;          // two tensors of one count once
  int64_t parameter_bytes = 0;   // of these
  int64_t everything_bytes = 0;  // of a budget that holds all of them
  // That the operations of one module take at a time, at most.
  int64_t operation_bytes = 0;
  // The least budget that works with a tier below: these twice, as one may be
  // on its way while another is used; with activations, these and room for a
  // few of the least that go below, if that is more. And what needs it.
  int64_t minimum_bytes = 0;
  std::string minimum_reason;
  // That an AdamW has besides, over all tensors that require gradients.
  int64_t training_bytes = 0;

  int64_t budget_bytes = 0;  // of the Runtime
  int64_t window_bytes = 0;  // of the hook, within it
  // The largest saved tensor that goes below: what one operation of backward
  // takes fits then, as a rule. 0: none does.
  int64_t activation_bytes = 0;
  // Of the budget, added to a share of the parameters for activations.
  int64_t beside_share_bytes = 0;
  int64_t growth_bytes = 0;  // that optimizers may add to the budget
  // Of a budget that is a share: of what an optimizer adds, as much is in
  // memory, at most all. Else 0.
  double share = 0;
  bool all_in_memory = false;
};

// Of the addresses that are reserved for optimizers.
inline constexpr int64_t kJoinedWindowBytes = int64_t{1} << 30;

// Of the Runtime's bytes that no optimizer has, those of the hook's window.
int64_t OffloadWindow(const OffloadPlan& plan, int64_t bytes);
// Of these bytes, those of the largest saved tensor that goes below.
int64_t ActivationLimit(const OffloadPlan& plan, int64_t bytes);

// Of what these have; two of one storage count once.
int64_t StorageBytes(const std::vector<at::Tensor>& tensors);

// `modules` has, for each, which tensors its operations take at a time, by
// index. InvalidArgument: not all of them fit the budget, and there is nothing
// below; an index that is none. ResourceExhausted: a budget below the minimum,
// which is named.
absl::StatusOr<OffloadPlan> PlanOffload(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const PlaceOptions& asked);

}  // namespace terrace
