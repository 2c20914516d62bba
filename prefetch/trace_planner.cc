#include "prefetch/trace_planner.h"

#include <algorithm>

#include "base/check.h"
#include "policies/eviction.h"

namespace terrace {

void TracePlanner::Open(int64_t queue) { traces_.try_emplace(queue); }

void TracePlanner::Close(int64_t queue) {
  const auto found = traces_.find(queue);
  if (found == traces_.end()) return;
  replaying_.erase(&found->second);
  traces_.erase(found);
}

void TracePlanner::BeginStep(int64_t queue) {
  AccessTrace& trace = Of(queue);
  trace.BeginStep();
  OnChanged(trace);
}

void TracePlanner::Forget(int64_t queue) {
  AccessTrace& trace = Of(queue);
  trace.Forget();
  OnChanged(trace);
}

void TracePlanner::OnChanged(const AccessTrace& trace) {
  if (trace.has_replay()) {
    replaying_.insert(&trace);
  } else {
    replaying_.erase(&trace);
  }
}

AccessTrace& TracePlanner::Of(int64_t queue) {
  const auto found = traces_.find(queue);
  TERRACE_CHECK(found != traces_.end());
  return found->second;
}

int64_t TracePlanner::NextUse(TensorId tensor) const {
  int64_t next = kUnknownUse;
  for (const AccessTrace* const trace : replaying_) {
    next = std::min(next, trace->NextUse(tensor));
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
