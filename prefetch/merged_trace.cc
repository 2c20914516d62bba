#include "prefetch/merged_trace.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "policies/eviction.h"

namespace terrace {
namespace {

// Recorded uses take some hundred bytes each, outside of all budgets. A million
// tensors have ten times as many uses in a step.
constexpr int64_t kMostMoreUses = int64_t{16} << 20;
// Lanes that change their pace by one of so many parts of the step change the
// order.
constexpr int64_t kLeadParts = 16;

}  // namespace

void MergedTrace::BeginStep() {
  is_endless_ = false;
  if (recorded_uses_ == 0) return BeginOrder();
  step_bytes_ = std::exchange(recorded_bytes_, 0);
  step_uses_ = std::exchange(recorded_uses_, 0);
  reached_ = 0;
  passed_bytes_ = 0;
  for (auto& [key, lane] : lanes_) lane.BeginStep(step_bytes_);
  absl::erase_if(lanes_,
                 [](const auto& each) { return each.second.size() == 0; });
  BeginOrder();
}

void MergedTrace::BeginOrder() {
  ++order_;
  lead_ = reached_ - passed_bytes_;
}

void MergedTrace::Clear() {
  lanes_.clear();
  recorded_bytes_ = recorded_uses_ = 0;
  step_bytes_ = step_uses_ = 0;
  reached_ = 0;
  passed_bytes_ = 0;
  BeginOrder();
}

bool MergedTrace::OnUse(int64_t lane, TensorId tensor, int64_t bytes) {
  if (is_endless_) return false;
  // As of a customer that never ends a step: nothing is expected until the next
  // one, which may have more, as this one did.
  if (recorded_uses_ > 4 * step_uses_ + most_more_uses_) {
    Clear();
    most_more_uses_ = std::min(4 * most_more_uses_, kMostMoreUses);
    is_endless_ = true;
    return false;
  }
  LaneTrace& trace = lanes_[lane];
  const bool is_new = !trace.IsLast(tensor);
  const int64_t passed = trace.passed_bytes();
  const LaneTrace::Followed followed =
      trace.OnUse(tensor, recorded_bytes_, bytes);
  if (is_new) {
    ++recorded_uses_;
    recorded_bytes_ += bytes;
  }
  passed_bytes_ += trace.passed_bytes() - passed;
  reached_ = std::max(reached_, trace.followed_place());
  if (followed == LaneTrace::Followed::kJump) {
    reached_ = trace.followed_place();
    BeginOrder();
  } else if (std::abs(reached_ - passed_bytes_ - lead_) >
             step_bytes_ / kLeadParts) {
    BeginOrder();
  }
  return trace.Has(tensor);
}

void MergedTrace::DropLanes(int64_t first, int64_t end) {
  const auto begin = lanes_.lower_bound(first);
  const auto behind = lanes_.lower_bound(end);
  if (begin == behind) return;
  for (auto each = begin; each != behind; ++each) {
    passed_bytes_ -= each->second.passed_bytes();
  }
  lanes_.erase(begin, behind);
  BeginOrder();
}

int64_t MergedTrace::BytesUntil(const LaneTrace& lane) const {
  const int64_t until = lane.place() - reached_;
  if (until >= 0) return until;
  return std::min(recorded_bytes_ - lane.used_place(), -until);
}

std::optional<LaneTrace::Expected> MergedTrace::Expected(const LaneTrace& lane,
                                                         int64_t count) const {
  std::optional<LaneTrace::Expected> expected = lane.ExpectedAt(count);
  if (expected.has_value()) expected->bytes += BytesUntil(lane);
  return expected;
}

int64_t MergedTrace::NextUse(TensorId tensor) const {
  int64_t first = kUnknownUse;
  for (const auto& [key, lane] : lanes_) {
    const std::optional<int64_t> next = lane.BytesUntil(tensor);
    if (!next.has_value()) continue;
    first = std::min(first, *next + BytesUntil(lane));
  }
  return first;
}

}  // namespace terrace
