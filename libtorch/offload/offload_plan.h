// Plans how much memory a model's parameters get that live below, and how it is
// shared out between the window that operations use and tensors on their way.
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
  int64_t storages = 0;          // one that several tensors have counts once
  int64_t parameter_bytes = 0;   // of these storages
  int64_t everything_bytes = 0;  // of a budget that holds all of them
  // The most bytes that the operations of one module take at a time.
  int64_t operation_bytes = 0;
  // The least budget that works with a tier below. It is operation_bytes twice,
  // as the tensors of one module may be on their way while those of another are
  // used, or three tensors of the least size if that is more, but no more than
  // all that the model has. With activations it is operation_bytes and room for
  // a few of the least activations that go below, if that is more. The reason
  // says what needs it.
  int64_t minimum_bytes = 0;
  std::string minimum_reason;
  // The state and gradients that an AdamW has besides, over all tensors that
  // require gradients.
  int64_t training_bytes = 0;
  int64_t gradient_bytes = 0;          // of these, what gradients take
  int64_t largest_gradient_bytes = 0;  // and the largest of them

  int64_t budget_bytes = 0;        // of the Runtime; on a device, of its memory
  int64_t below_device_bytes = 0;  // of the CPU's memory then
  int64_t window_bytes = 0;        // of the hook, within it
  // The size of the largest saved tensor that goes below, so that the saved
  // tensors of one operation of backward fit, as a rule. 0: none goes below.
  int64_t activation_bytes = 0;
  // The bytes of the budget that were added for activations, to a share of the
  // parameters or to a budget that holds them all.
  int64_t beside_share_bytes = 0;
  int64_t growth_bytes = 0;  // that optimizers may add to the budget
  // The share, at most 1, that a budget of the CPU's memory has which is a
  // share of the parameters, else 0. The same share of what an optimizer adds
  // is in memory.
  double share = 0;
  bool all_in_memory = false;
};

// The bytes for optimizers' windows among the addresses that are reserved for
// optimizers.
inline constexpr int64_t kJoinedWindowBytes = int64_t{1} << 30;

// Returns the bytes of the hook's window, of `bytes` that the Runtime has and
// no optimizer.
int64_t OffloadWindow(const OffloadPlan& plan, int64_t bytes);
// Returns the size of the largest saved tensor that goes below, of the same
// `bytes`.
int64_t ActivationLimit(const OffloadPlan& plan, int64_t bytes);

// Returns the bytes of the tensors' storages; one of several tensors counts
// once.
int64_t StorageBytes(const std::vector<at::Tensor>& tensors);

// `modules` has, for each module, which tensors its operations take at a time,
// by index. Returns InvalidArgument when not all tensors fit the budget and
// there is nothing below, when an index is none of a tensor, or when there is
// not a name for each tensor. Returns ResourceExhausted for a budget below the
// minimum, which the message names.
absl::StatusOr<OffloadPlan> PlanOffload(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const PlaceOptions& asked);

}  // namespace terrace
