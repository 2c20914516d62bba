#include "prefetch/access_trace.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policies/eviction.h"

namespace terrace {
namespace {

// The first of the positions at or after `from`, round the end.
int64_t NextPosition(const RecordedStep::Positions& positions, int64_t from) {
  const auto next = std::lower_bound(positions.begin(), positions.end(), from);
  return next == positions.end() ? positions.front() : *next;
}

}  // namespace

void AccessTrace::BeginStep() {
  position_ = 0;
  if (recording_.step.empty()) return;
  replay_ = std::exchange(recording_, {});
  recording_.step.ReserveAs(replay_.step);
  recording_.coming.reserve(replay_.coming.size());
}

void AccessTrace::Forget() {
  recording_ = {};
  replay_ = {};
  position_ = 0;
}

bool AccessTrace::OnAccess(TensorId tensor, bool stays) {
  if (!stays) recording_.coming.push_back(recording_.step.size());
  recording_.step.Add(tensor, /*size_bytes=*/1);
  const RecordedStep::Positions* const positions = replay_.step.Find(tensor);
  if (positions == nullptr) return false;
  position_ = NextPosition(*positions, position_) + 1;
  if (position_ == replay_.step.size()) position_ = 0;
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
    out->push_back(replay_.step.accesses[static_cast<size_t>(place)]);
  }
}

int64_t AccessTrace::NextUse(TensorId tensor) const {
  const RecordedStep::Positions* const positions = replay_.step.Find(tensor);
  if (positions == nullptr) return kUnknownUse;
  const int64_t next = NextPosition(*positions, position_);
  return next >= position_ ? next - position_
                           : next + replay_.step.size() - position_;
}

}  // namespace terrace
