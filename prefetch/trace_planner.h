// What comes next, by today's rule: every queue's next step asks for what its
// last one did, in that order. One thread at a time (the mover).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "prefetch/access_trace.h"
#include "terrace/tensor.h"

namespace terrace {

class TracePlanner {
 public:
  void Open(int64_t queue);
  void Close(int64_t queue);

  void BeginStep(int64_t queue);
  void Forget(int64_t queue);
  // As AccessTrace's.
  bool OnAccess(int64_t queue, TensorId tensor, bool stays = false) {
    return Of(queue).OnAccess(tensor, stays);
  }

  // Accesses from now until the first queue asks for the tensor, each by its
  // own; kUnknownUse when nothing says so.
  int64_t NextUse(TensorId tensor) const;
  // The queue's next `count` tensors, in order, without those that stayed in
  // memory in its last step; false: nothing says which.
  bool Upcoming(int64_t queue, int64_t count, std::vector<TensorId>* out) const;

 private:
  AccessTrace& Of(int64_t queue);
  void OnChanged(const AccessTrace& trace);

  absl::node_hash_map<int64_t, AccessTrace> traces_;  // by queue
  // Of those, the ones that say what comes: few, and gone through for every
  // decision.
  absl::flat_hash_set<const AccessTrace*> replaying_;
};

}  // namespace terrace
