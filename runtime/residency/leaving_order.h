// In which order the copies of a tier leave it for others: first the one that
// is used last from now on, by the merged order of all customers. Those that no
// order tells of go before all others, the one that was used longest ago first;
// so do all where the policy looks at recency alone.
//
// A copy's place in the order costs O(log n) to change, and so does a choice.
// It changes with a use of the tensor, or as a step passes over the tensor; as
// another step begins all places are found anew, once. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "prefetch/trace_planner.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {

class LeavingOrder {
 public:
  // `planner` outlives the order. `by_next_use`: else by recency alone.
  LeavingOrder(const TracePlanner& planner, bool by_next_use)
      : planner_(planner), by_next_use_(by_next_use) {}

  // The tensor is used now; it stands in the order from here on, or stands in
  // it and gets another place. Tensors outlive their stay.
  void OnUse(Tensor& tensor);
  // It stands in the order again, by the use that it had last.
  void PutBack(Tensor& tensor);
  // It does not leave for the time being: Forget forgets its last use as well.
  void SetAside(const Tensor& tensor);
  void Forget(const Tensor& tensor);

  // Shows the first `most`, in their order, as long as `visit` returns true.
  void Visit(absl::FunctionRef<bool(Tensor&)> visit, int64_t most);
  // The first of those that may leave, in their order, until they have `bytes`
  // together; fewer where there are no more among the first `most` of all.
  std::vector<Tensor*> First(int64_t bytes,
                             absl::FunctionRef<bool(const Tensor&)> may_leave,
                             int64_t most = INT64_MAX);
  size_t size() const { return order_.size(); }

 private:
  struct Place {
    int64_t used_at = 0;  // bytes of the merged order; kUnknownUse: never
    int64_t last_use = 0;
    int64_t id = 0;
    Tensor* tensor = nullptr;

    friend bool operator<(const Place& a, const Place& b) {
      if (a.used_at != b.used_at) return a.used_at > b.used_at;
      if (a.last_use != b.last_use) return a.last_use < b.last_use;
      return a.id < b.id;
    }
  };

  Place PlaceOf(Tensor& tensor, int64_t last_use) const;
  void Insert(Tensor& tensor, int64_t last_use);
  // The places are those of the step as it stands now.
  void Refresh();

  const TracePlanner& planner_;
  const bool by_next_use_;
  absl::btree_set<Place> order_;
  absl::flat_hash_map<const Tensor*, Place> places_;  // in that
  absl::flat_hash_map<const Tensor*, int64_t> last_uses_;
  int64_t uses_ = 0;
  uint64_t step_ = 0;  // that the places are of
};

}  // namespace terrace
