#include "prefetch/access_trace.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policies/eviction.h"

namespace terrace {
namespace {

// The first of the ascending `positions` at or after `from`, round the end.
int64_t NextPosition(const std::vector<int64_t>& positions, int64_t from) {
  const auto next = std::lower_bound(positions.begin(), positions.end(), from);
  return next == positions.end() ? positions.front() : *next;
}

}  // namespace

void AccessTrace::BeginStep() {
  position_ = 0;
  if (recording_.empty()) return;
  replay_ = std::exchange(recording_, {});
  recording_.reserve(replay_.size());
  positions_.clear();
  for (size_t i = 0; i < replay_.size(); ++i) {
    positions_[replay_[i].value].push_back(static_cast<int64_t>(i));
  }
}

void AccessTrace::Forget() {
  recording_.clear();
  replay_.clear();
  positions_.clear();
  position_ = 0;
}

void AccessTrace::OnAccess(TensorId tensor) {
  recording_.push_back(tensor);
  const auto found = positions_.find(tensor.value);
  if (found == positions_.end()) return;
  position_ = NextPosition(found->second, position_) + 1;
  if (position_ == static_cast<int64_t>(replay_.size())) position_ = 0;
}

void AccessTrace::Upcoming(int64_t count, std::vector<TensorId>* out) const {
  out->clear();
  const auto size = static_cast<int64_t>(replay_.size());
  const int64_t wanted = std::min(count, size);
  for (int64_t i = 0; i < wanted; ++i) {
    out->push_back(replay_[static_cast<size_t>((position_ + i) % size)]);
  }
}

int64_t AccessTrace::NextUse(TensorId tensor) const {
  const auto found = positions_.find(tensor.value);
  if (found == positions_.end()) return kUnknownUse;
  const int64_t next = NextPosition(found->second, position_);
  const auto size = static_cast<int64_t>(replay_.size());
  return next >= position_ ? next - position_ : next + size - position_;
}

}  // namespace terrace
