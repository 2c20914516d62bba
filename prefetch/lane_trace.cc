#include "prefetch/lane_trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace terrace {
namespace {

// A use that is so many uses from the position, or fewer, is near.
constexpr int64_t kNear = 64;
// Uses in a row that have the lane go on elsewhere.
constexpr int64_t kAstray = 16;

}  // namespace

void LaneTrace::BeginStep(int64_t bytes) {
  replay_ = std::exchange(recording_, {});
  recording_.step.ReserveAs(replay_.step);
  recording_.places.reserve(replay_.places.size());
  step_bytes_ = bytes;
  is_over_.assign(static_cast<size_t>(size()), false);
  position_ = 0;
  followed_place_ = 0;
  used_place_ = 0;
  astray_uses_ = 0;
}

LaneTrace::Followed LaneTrace::OnUse(TensorId tensor, int64_t place,
                                     int64_t bytes) {
  used_place_ = place;
  if (IsLast(tensor)) return Followed::kNothing;
  used_place_ += bytes;
  recording_.step.Add(tensor, bytes);
  recording_.places.push_back(place);
  const Positions* const positions = replay_.step.Find(tensor);
  if (positions == nullptr) return Followed::kNothing;
  const std::optional<int64_t> next = NextOf(*positions);
  if (next.has_value() && std::abs(*next - position_) <= kNear) {
    Follow(*next);
    return Followed::kUse;
  }
  if (IsRepeated(*positions)) return Followed::kNothing;
  return FollowAstray(*positions);
}

void LaneTrace::Follow(int64_t position) {
  is_over_[static_cast<size_t>(position)] = true;
  astray_uses_ = 0;
  followed_place_ = PlaceBehind(position);
  position_ = std::max(position_, position + 1);
}

std::optional<int64_t> LaneTrace::NextOf(const Positions& positions) const {
  auto next =
      std::lower_bound(positions.begin(), positions.end(), position_ - kNear);
  while (next != positions.end() && is_over(*next)) ++next;
  if (next == positions.end()) return std::nullopt;
  return *next;
}

bool LaneTrace::IsRepeated(const Positions& positions) const {
  const auto near =
      std::lower_bound(positions.begin(), positions.end(), position_ - kNear);
  return near != positions.end() && *near < position_;
}

LaneTrace::Followed LaneTrace::FollowAstray(const Positions& positions) {
  auto next = positions.end();
  if (astray_uses_ > 0) {
    next = std::lower_bound(positions.begin(), positions.end(), astray_);
  }
  const bool goes_on = next != positions.end() && *next - astray_ <= kNear;
  // Of its uses the first that the lane comes to, else the very first.
  if (!goes_on) {
    next = std::lower_bound(positions.begin(), positions.end(), position_);
    if (next == positions.end()) next = positions.begin();
  }
  astray_uses_ = goes_on ? astray_uses_ + 1 : 1;
  astray_ = *next + 1;
  if (astray_uses_ < kAstray) return Followed::kNothing;
  // From there on the lane goes over its order, maybe once more.
  std::fill(is_over_.begin() + astray_, is_over_.end(), false);
  astray_uses_ = 0;
  position_ = astray_;
  followed_place_ = PlaceBehind(*next);
  return Followed::kJump;
}

std::optional<LaneTrace::Expected> LaneTrace::ExpectedAt(int64_t count) const {
  if (count >= size()) return std::nullopt;
  const bool is_next_step = position_ + count >= size();
  const int64_t at = position_ + count - (is_next_step ? size() : 0);
  const int64_t bytes =
      PlaceOf(at) - place() + (is_next_step ? step_bytes_ : 0);
  return Expected{replay_.step.accesses[static_cast<size_t>(at)], bytes};
}

std::optional<int64_t> LaneTrace::BytesUntil(TensorId tensor) const {
  const Positions* const positions = replay_.step.Find(tensor);
  if (positions == nullptr) return std::nullopt;
  const std::optional<int64_t> next = NextOf(*positions);
  // The longer a use is late, the later it is expected.
  if (next.has_value()) {
    return *next < position_ ? passed_bytes() - replay_.step.BytesBefore(*next)
                             : PlaceOf(*next) - place();
  }
  return step_bytes_ - place() + PlaceOf(positions->front());
}

}  // namespace terrace
