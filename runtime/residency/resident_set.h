// Copies outside all windows: which there are and which are asked to leave. A
// decision looks at a sample of them, so that it costs no more with many
// residents than with few; the hand moves on, so that all come up in turn. Once
// queues of bytes work on the tier, residents also have an order in which they
// leave (leaving_order.h), from which those queues' groups choose. Mover only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "policies/eviction.h"
#include "prefetch/trace_planner.h"
#include "runtime/residency/leaving_order.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/byte_tier.h"
#include "tiers/extent.h"

namespace terrace {

class ResidentSet {
 public:
  explicit ResidentSet(std::unique_ptr<EvictionPolicy> policy)
      : policy_(std::move(policy)) {}

  void Add(Tensor& tensor, const Extent& room);
  // Of one that is none: nothing.
  void Remove(const Tensor& tensor);
  void Touch(const Tensor& tensor);
  bool Has(const Tensor& tensor) const { return places_.contains(&tensor); }

  // From here on there is the order in which residents leave. The planner
  // outlives the set.
  void Rank(const TracePlanner& planner);
  bool is_ranked() const { return order_.has_value(); }
  bool ranks_by_next_use() const { return policy_->ranks_by_next_use(); }
  // What the order has first of those that may leave: `bytes` of it, among its
  // first `most`.
  std::vector<Tensor*> FirstToLeave(
      int64_t bytes, absl::FunctionRef<bool(const Tensor&)> may_leave,
      int64_t most = INT64_MAX) {
    return order_->First(bytes, may_leave, most);
  }
  // Those that make room for so many bytes in one part of that tier, of the
  // first `most` (neighbour_run.h). What leaves, or was asked for back, makes
  // room too if it `comes` for who asks. Nullopt: these are too few.
  std::optional<std::vector<Tensor*>> RunToLeave(
      int64_t bytes, const Tier& tier,
      absl::FunctionRef<bool(const Tensor&)> comes,
      absl::FunctionRef<bool(const Tensor&)> may_leave,
      int64_t most = INT64_MAX);
  // A resident that was asked for back does not stand in the order until its
  // pins have ended.
  void SetAside(const Tensor& tensor);
  void PutBack(Tensor& tensor);

  // On its way out: written back first, then dropped.
  void SetLeaving(const Tensor& tensor, bool leaving);
  bool IsLeaving(const Tensor& tensor) const {
    return leaving_.contains(&tensor);
  }
  int leaving() const { return static_cast<int>(leaving_.size()); }
  int64_t leaving_bytes() const { return leaving_bytes_; }

  struct Resident {
    Tensor* tensor = nullptr;
    Extent room;
  };
  const std::vector<Resident>& all() const { return residents_; }
  int64_t size_bytes() const { return size_bytes_; }

  // What the policy would evict, best first, of up to `sample` that may
  // leave; `next_use` says when each is needed. `must`: as the policy's.
  std::vector<TensorId> PickVictims(
      int64_t bytes, int64_t newcomer_use, bool must, int64_t sample,
      absl::FunctionRef<bool(const Tensor&)> may_leave,
      absl::FunctionRef<int64_t(const Tensor&)> next_use);

 private:
  const std::unique_ptr<EvictionPolicy> policy_;
  std::vector<Resident> residents_;
  absl::flat_hash_map<const Tensor*, size_t> places_;  // in those
  absl::flat_hash_set<const Tensor*> leaving_;
  int64_t leaving_bytes_ = 0;
  std::optional<LeavingOrder> order_;
  absl::flat_hash_set<const Tensor*> aside_;
  size_t hand_ = 0;  // where the next sample starts
  int64_t size_bytes_ = 0;
};

}  // namespace terrace
