// The pins of one queue of bytes that were not asked back: how many bytes their
// tensors have, and which of them are asked back where that is more than the
// queue is to hold. First go those that are used last, by the order of all
// customers (leaving_order.h); those that were granted since the last look, or
// that their askers use, go after all others. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "prefetch/trace_planner.h"
#include "runtime/residency/leaving_order.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {

class HeldPins {
 public:
  // As LeavingOrder has them.
  HeldPins(const TracePlanner& planner, bool by_next_use)
      : order_(planner, by_next_use) {}

  void HoldAtMost(int64_t bytes) { most_bytes_ = bytes; }
  // One more pin of the tensor, or one less: it has ended, or is asked back.
  void Add(Tensor& tensor);
  void Remove(const Tensor& tensor);
  // The queue uses the tensor, which it may have pinned.
  void OnUse(Tensor& tensor);
  // At the next look the tensor goes after all others.
  void Spare(Tensor& tensor);

  // Those to be asked back now, of those that may end. The caller removes them.
  std::vector<Tensor*> TakeBeyond(
      absl::FunctionRef<bool(const Tensor&)> may_end);

 private:
  LeavingOrder order_;
  absl::flat_hash_map<const Tensor*, int> pins_;  // of each
  std::vector<Tensor*> spared_;                   // at the next look
  int64_t held_bytes_ = 0;                        // headers included
  int64_t most_bytes_ = INT64_MAX;
};

}  // namespace terrace
