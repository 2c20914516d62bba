#include "prefetch/trace_planner.h"

#include <algorithm>

#include "policies/eviction.h"
#include "runtime/base/check.h"

namespace terrace {

void TracePlanner::Open(int64_t queue) {
  const auto at = Find(queue);
  if (at == traces_.end()) traces_.emplace_back(queue, AccessTrace());
}

void TracePlanner::Close(int64_t queue) {
  const auto at = Find(queue);
  if (at != traces_.end()) traces_.erase(at);
}

TracePlanner::Traces::const_iterator TracePlanner::Find(int64_t queue) const {
  return std::find_if(
      traces_.begin(), traces_.end(),
      [queue](const auto& each) { return each.first == queue; });
}

AccessTrace& TracePlanner::Of(int64_t queue) {
  const auto at = Find(queue);
  TERRACE_CHECK(at != traces_.end());
  return traces_[static_cast<size_t>(at - traces_.begin())].second;
}

int64_t TracePlanner::NextUse(TensorId tensor) const {
  int64_t next = kUnknownUse;
  for (const auto& [queue, trace] : traces_) {
    next = std::min(next, trace.NextUse(tensor));
  }
  return next;
}

bool TracePlanner::Upcoming(int64_t queue, int64_t count,
                            std::vector<TensorId>* out) const {
  const auto found = Find(queue);
  if (found == traces_.end() || !found->second.has_replay()) return false;
  found->second.Upcoming(count, out);
  return true;
}

}  // namespace terrace
