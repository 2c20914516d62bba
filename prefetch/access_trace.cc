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
  is_endless_ = false;
  ++order_;
  if (recording_.accesses.empty()) return;
  replay_ = std::exchange(recording_, {});
  recording_.accesses.reserve(replay_.accesses.size());
  recording_.positions.reserve(replay_.positions.size());
  recording_.coming.reserve(replay_.coming.size());
  recording_.bytes.reserve(replay_.bytes.size());
}

void AccessTrace::Forget() {
  recording_ = {};
  replay_ = {};
  position_ = 0;
  is_endless_ = false;
  ++order_;
}

bool AccessTrace::OnAccess(TensorId tensor, bool stays, int64_t bytes) {
  if (is_endless_) return false;
  const auto recorded = static_cast<int64_t>(recording_.accesses.size());
  const bool repeats = options_.joins_repeats && recorded > 0 &&
                       recording_.accesses.back() == tensor;
  if (!repeats) {
    if (IsEndless()) {
      Forget();
      is_endless_ = true;
      return false;
    }
    recording_.accesses.push_back(tensor);
    recording_.positions[tensor.value].push_back(recorded);
    if (!stays) recording_.coming.push_back(recorded);
    if (options_.in_bytes) {
      const int64_t before = recorded == 0 ? 0 : recording_.bytes.back();
      recording_.bytes.push_back(before + bytes);
    }
  }
  const auto found = replay_.positions.find(tensor.value);
  if (found == replay_.positions.end()) return false;
  if (!repeats) Follow(found->second);
  return true;
}

bool AccessTrace::IsEndless() const {
  if (options_.most_more_uses == INT64_MAX) return false;
  return static_cast<int64_t>(recording_.accesses.size()) >
         4 * size() + options_.most_more_uses;
}

void AccessTrace::Follow(const Positions& positions) {
  if (follows_all()) {
    position_ = NextPosition(positions, position_) + 1;
    if (position_ == size()) position_ = 0;
    return;
  }
  const auto next =
      std::lower_bound(positions.begin(), positions.end(), position_);
  if (next == positions.end()) return;
  if (*next - position_ <= options_.most_passed) position_ = *next + 1;
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

std::optional<TensorId> AccessTrace::Expected(int64_t count) const {
  if (count >= size()) return std::nullopt;
  return replay_.accesses[static_cast<size_t>((position_ + count) % size())];
}

int64_t AccessTrace::NextUse(TensorId tensor) const {
  const auto found = replay_.positions.find(tensor.value);
  if (found == replay_.positions.end()) return kUnknownUse;
  const int64_t next = NextPosition(found->second, position_);
  const int64_t between = Before(next) - Before(position_);
  return next >= position_ ? between : between + Before(size());
}

int64_t AccessTrace::Before(int64_t position) const {
  if (!options_.in_bytes || position == 0) return position;
  return replay_.bytes[static_cast<size_t>(position - 1)];
}

}  // namespace terrace
