#include "prefetch/merged_trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "policies/eviction.h"

namespace terrace {
namespace {

// A use that is so many uses from a cursor, or fewer, is near.
constexpr int64_t kNear = 64;
// Uses in a row that make a cursor, how many cursors there may be, and for how
// many uses one stays that nothing follows.
constexpr int64_t kAstray = 16;
constexpr size_t kMostCursors = 4;
constexpr int64_t kMostIdle = 256;
// A step of so many uses more than four times the last one's is none, as of a
// customer that never ends one: nothing is expected until the next step.
constexpr int64_t kMostMoreUses = 64 << 10;

}  // namespace

void MergedTrace::BeginStep() {
  is_endless_ = false;
  if (!recording_.empty()) {
    replay_ = std::exchange(recording_, {});
    recording_.ReserveAs(replay_);
  }
  Restart();
}

void MergedTrace::Restart() {
  is_over_.assign(static_cast<size_t>(replay_.size()), false);
  cursors_ = {Cursor()};
  passed_bytes_ = 0;
  astray_uses_ = 0;
  ++order_;
}

bool MergedTrace::OnUse(TensorId tensor, int64_t bytes) {
  if (is_endless_) return false;
  const bool repeats =
      !recording_.empty() && recording_.accesses.back() == tensor;
  if (!repeats) {
    if (recording_.size() > 4 * replay_.size() + kMostMoreUses) {
      recording_ = {};
      replay_ = {};
      is_endless_ = true;
      Restart();
      return false;
    }
    recording_.Add(tensor, bytes);
  }
  const RecordedStep::Positions* const positions = replay_.Find(tensor);
  if (positions == nullptr || repeats) return positions != nullptr;
  const Match match = FindNear(*positions);
  match.cursor == nullptr ? FollowAstray(*positions) : Follow(match);
  if (cursors_.size() > 1) DropIdle();
  return true;
}

void MergedTrace::Follow(const Match& match) {
  is_over_[static_cast<size_t>(match.position)] = true;
  Cursor& cursor = *match.cursor;
  cursor.followed = recording_.size();
  if (match.position < cursor.position) return;  // it was late
  passed_bytes_ -= replay_.BytesBefore(cursor.position);
  cursor.position = match.position + 1;
  passed_bytes_ += replay_.BytesBefore(cursor.position);
}

MergedTrace::Match MergedTrace::FindNear(
    const RecordedStep::Positions& positions) {
  Match nearest;
  int64_t distance = kNear + 1;
  for (Cursor& each : cursors_) {
    const std::optional<int64_t> next = NextFor(each, positions);
    if (!next.has_value()) continue;
    const int64_t from_it = std::abs(*next - each.position);
    if (from_it >= distance) continue;
    distance = from_it;
    nearest = {&each, *next};
  }
  return nearest;
}

std::optional<int64_t> MergedTrace::NextFor(
    const Cursor& cursor, const RecordedStep::Positions& positions) const {
  auto next = std::lower_bound(positions.begin(), positions.end(),
                               cursor.position - kNear);
  while (next != positions.end() && is_over(*next)) ++next;
  if (next == positions.end()) return std::nullopt;
  return *next;
}

void MergedTrace::FollowAstray(const RecordedStep::Positions& positions) {
  auto next = positions.end();
  if (astray_uses_ > 0) {
    next =
        std::lower_bound(positions.begin(), positions.end(), astray_.position);
  }
  const bool goes_on =
      next != positions.end() && *next - astray_.position <= kNear;
  // Of its uses the first that the first cursor comes to, else the very first.
  if (!goes_on) {
    next = std::lower_bound(positions.begin(), positions.end(), uses());
    if (next == positions.end()) next = positions.begin();
  }
  astray_uses_ = goes_on ? astray_uses_ + 1 : 1;
  astray_ = {*next + 1, recording_.size()};
  if (astray_uses_ < kAstray) return;
  // From there on the step goes over its order, maybe once more.
  std::fill(is_over_.begin() + astray_.position, is_over_.end(), false);
  astray_uses_ = 0;
  if (cursors_.size() == kMostCursors) cursors_.erase(cursors_.begin());
  cursors_.push_back(astray_);
  ++order_;
}

void MergedTrace::DropIdle() {
  const auto is_idle = [this](const Cursor& each) {
    return recording_.size() - each.followed > kMostIdle;
  };
  const auto first = std::remove_if(cursors_.begin(), cursors_.end(), is_idle);
  if (first == cursors_.begin() || first == cursors_.end()) return;
  cursors_.erase(first, cursors_.end());
  ++order_;
}

std::optional<ExpectedUse> MergedTrace::Expected(int64_t count) const {
  if (count >= replay_.size()) return std::nullopt;
  const int64_t position = uses() + count;
  const bool is_next_step = position >= replay_.size();
  const int64_t in_step = is_next_step ? position - replay_.size() : position;
  return ExpectedUse{replay_.accesses[static_cast<size_t>(in_step)],
                     !is_next_step && is_over(in_step)};
}

int64_t MergedTrace::NextUse(TensorId tensor) const {
  const RecordedStep::Positions* const positions = replay_.Find(tensor);
  if (positions == nullptr) return kUnknownUse;
  int64_t first = kUnknownUse;
  for (const Cursor& each : cursors_) {
    const std::optional<int64_t> next = NextFor(each, *positions);
    if (!next.has_value()) continue;
    first = std::min(first, std::abs(replay_.BytesBefore(*next) -
                                     replay_.BytesBefore(each.position)));
  }
  if (first != kUnknownUse) return first;
  return replay_.bytes.back() - replay_.BytesBefore(uses()) +
         replay_.BytesBefore(positions->front());
}

}  // namespace terrace
