#include "prefetch/trace_planner.h"

#include "policies/eviction.h"

namespace terrace {

int64_t TracePlanner::NextUse(int64_t queue, TensorId tensor) const {
  const auto found = traces_.find(queue);
  return found == traces_.end() ? kUnknownUse : found->second.NextUse(tensor);
}

bool TracePlanner::Upcoming(int64_t queue, int64_t count,
                            std::vector<TensorId>* out) const {
  const auto found = traces_.find(queue);
  if (found == traces_.end() || !found->second.has_replay()) return false;
  found->second.Upcoming(count, out);
  return true;
}

}  // namespace terrace
