#include "prefetch/trace_planner.h"

#include <algorithm>

#include "policies/eviction.h"

namespace terrace {

int64_t TracePlanner::NextUse(TensorId tensor) const {
  int64_t next = kUnknownUse;
  for (const auto& [queue, trace] : traces_) {
    next = std::min(next, trace.NextUse(tensor));
  }
  return next;
}

bool TracePlanner::Upcoming(int64_t queue, int64_t count,
                            std::vector<TensorId>* out) const {
  const auto found = traces_.find(queue);
  if (found == traces_.end() || !found->second.has_replay()) return false;
  found->second.Upcoming(count, out);
  return true;
}

}  // namespace terrace
