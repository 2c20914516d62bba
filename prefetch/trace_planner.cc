#include "prefetch/trace_planner.h"

#include <algorithm>

#include "base/check.h"
#include "policies/eviction.h"

namespace terrace {

void TracePlanner::Open(int64_t queue) { traces_.try_emplace(queue); }

void TracePlanner::Close(int64_t queue) {
  if (merged_.has_value()) {
    merged_->DropLanes(LaneOf(queue, 0), LaneOf(queue + 1, 0));
  }
  begun_.erase(queue);
  replaying_.erase(queue);
  traces_.erase(queue);
}

void TracePlanner::Merge() {
  if (!merged_.has_value()) merged_.emplace();
}

void TracePlanner::BeginStep(int64_t queue) {
  AccessTrace& trace = Of(queue);
  trace.BeginStep();
  OnChanged(queue, trace);
  if (!merged_.has_value() || begun_.insert(queue).second) return;
  merged_->BeginStep();
  begun_ = {queue};
}

bool TracePlanner::OnAccess(int64_t queue, TensorId tensor, bool stays,
                            int64_t bytes) {
  if (merged_.has_value()) merged_->OnUse(kOtherQueues, tensor, bytes);
  return Of(queue).OnAccess(tensor, stays);
}

void TracePlanner::Forget(int64_t queue) {
  AccessTrace& trace = Of(queue);
  trace.Forget();
  OnChanged(queue, trace);
}

void TracePlanner::OnChanged(int64_t queue, const AccessTrace& trace) {
  if (trace.has_replay()) {
    replaying_[queue] = &trace;
  } else {
    replaying_.erase(queue);
  }
}

AccessTrace& TracePlanner::Of(int64_t queue) {
  const auto found = traces_.find(queue);
  TERRACE_CHECK(found != traces_.end());
  return found->second;
}

int64_t TracePlanner::NextUse(TensorId tensor) const {
  if (merged_.has_value()) return merged_->NextUse(tensor);
  int64_t next = kUnknownUse;
  for (const auto& [queue, trace] : replaying_) {
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
