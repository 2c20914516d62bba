// What comes next, by today's rule: every queue's next step asks for what its
// last one did, in that order. One thread at a time (the mover).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "prefetch/access_trace.h"
#include "terrace/tensor.h"

namespace terrace {

class TracePlanner {
 public:
  void Open(int64_t queue);
  void Close(int64_t queue);

  void BeginStep(int64_t queue) { Of(queue).BeginStep(); }
  void Forget(int64_t queue) { Of(queue).Forget(); }
  void OnAccess(int64_t queue, TensorId tensor) { Of(queue).OnAccess(tensor); }

  // Accesses from now until the first queue asks for the tensor, each by its
  // own; kUnknownUse when nothing says so.
  int64_t NextUse(TensorId tensor) const;
  // The queue's next `count` tensors, in order; false: nothing says which.
  bool Upcoming(int64_t queue, int64_t count, std::vector<TensorId>* out) const;

 private:
  using Traces = std::vector<std::pair<int64_t, AccessTrace>>;  // by queue

  Traces::const_iterator Find(int64_t queue) const;
  AccessTrace& Of(int64_t queue);

  // Few, and gone through for every decision.
  Traces traces_;
};

}  // namespace terrace
