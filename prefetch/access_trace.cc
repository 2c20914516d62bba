#include "prefetch/access_trace.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policies/eviction.h"

namespace terrace {
namespace {

// The first of the ascending `positions` at or after `from`, round the end.
int64_t NextPosition(absl::Span<const int64_t> positions, int64_t from) {
  const auto next = std::lower_bound(positions.begin(), positions.end(), from);
  return next == positions.end() ? positions.front() : *next;
}

}  // namespace

void AccessTrace::BeginStep() {
  position_ = 0;
  if (recording_.accesses.empty()) return;
  replay_ = std::exchange(recording_, {});
  recording_.accesses.reserve(replay_.accesses.size());
  recording_.positions.reserve(replay_.positions.size());
  recording_.coming.reserve(replay_.coming.size());
}

void AccessTrace::Forget() {
  recording_ = {};
  replay_ = {};
  position_ = 0;
}

bool AccessTrace::OnAccess(TensorId tensor, bool stays) {
  const auto recorded = static_cast<int64_t>(recording_.accesses.size());
  recording_.accesses.push_back(tensor);
  recording_.positions[tensor.value].push_back(recorded);
  if (!stays) recording_.coming.push_back(recorded);
  const auto found = replay_.positions.find(tensor.value);
  if (found == replay_.positions.end()) return false;
  position_ = NextPosition(found->second, position_) + 1;
  if (position_ == static_cast<int64_t>(replay_.accesses.size())) position_ = 0;
  return true;
}

void AccessTrace::Upcoming(int64_t count, std::vector<TensorId>* out) const {
  out->clear();
  const std::vector<int64_t>& coming = replay_.coming;
  const auto size = static_cast<int64_t>(coming.size());
  const int64_t first =
      std::lower_bound(coming.begin(), coming.end(), position_) -
      coming.begin();
  const int64_t wanted = std::min(count, size);
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t place = coming[static_cast<size_t>((first + i) % size)];
    out->push_back(replay_.accesses[static_cast<size_t>(place)]);
  }
}

int64_t AccessTrace::NextUse(TensorId tensor) const {
  const auto found = replay_.positions.find(tensor.value);
  if (found == replay_.positions.end()) return kUnknownUse;
  const int64_t next = NextPosition(found->second, position_);
  const auto size = static_cast<int64_t>(replay_.accesses.size());
  return next >= position_ ? next - position_ : next + size - position_;
}

}  // namespace terrace
