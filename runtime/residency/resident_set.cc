#include "runtime/residency/resident_set.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "runtime/residency/neighbour_run.h"
#include "terrace/runtime.h"

namespace terrace {

void ResidentSet::Add(Tensor& tensor, const Extent& room) {
  places_[&tensor] = residents_.size();
  residents_.push_back({&tensor, room});
  size_bytes_ += room.size_bytes;
  policy_->OnResident(tensor.id);
  if (is_ranked()) order_->OnUse(tensor);
}

void ResidentSet::Remove(const Tensor& tensor) {
  const auto found = places_.find(&tensor);
  if (found == places_.end()) return;
  const size_t place = found->second;
  places_.erase(found);
  size_bytes_ -= residents_[place].room.size_bytes;
  if (place + 1 != residents_.size()) {
    residents_[place] = residents_.back();
    places_[residents_[place].tensor] = place;
  }
  residents_.pop_back();
  policy_->OnGone(tensor.id);
  if (is_ranked()) order_->Forget(tensor);
  aside_.erase(&tensor);
}

void ResidentSet::Touch(const Tensor& tensor) {
  const auto found = places_.find(&tensor);
  if (found == places_.end()) return;
  policy_->OnTouch(tensor.id);
  if (!is_ranked() || IsLeaving(tensor) || aside_.contains(&tensor)) return;
  order_->OnUse(*residents_[found->second].tensor);
}

void ResidentSet::Rank(const TracePlanner& planner) {
  if (is_ranked()) return;
  order_.emplace(planner, policy_->ranks_by_next_use());
  for (const Resident& each : residents_) {
    if (!IsLeaving(*each.tensor)) order_->OnUse(*each.tensor);
  }
}

std::optional<std::vector<Tensor*>> ResidentSet::RunToLeave(
    int64_t bytes, const Tier& tier,
    absl::FunctionRef<bool(const Tensor&)> comes,
    absl::FunctionRef<bool(const Tensor&)> may_leave, int64_t most) {
  NeighbourRun run(tier, bytes);
  const auto room_of = [this](const Tensor& tensor) {
    return residents_[places_.at(&tensor)].room;
  };
  for (const auto* const away : {&leaving_, &aside_}) {
    for (const Tensor* const each : *away) {
      if (Has(*each) && comes(*each)) run.AddComing(room_of(*each));
    }
  }
  const auto visit = [&](Tensor& tensor) {
    if (may_leave(tensor)) run.Add(tensor, room_of(tensor));
    return !run.complete();
  };
  if (!run.complete()) order_->Visit(visit, most);
  if (!run.complete()) return std::nullopt;
  return run.tensors();
}

void ResidentSet::SetAside(const Tensor& tensor) {
  if (!Has(tensor) || !aside_.insert(&tensor).second) return;
  order_->SetAside(tensor);
}

void ResidentSet::PutBack(Tensor& tensor) {
  if (aside_.erase(&tensor) == 0 || IsLeaving(tensor)) return;
  order_->PutBack(tensor);
}

void ResidentSet::SetLeaving(const Tensor& tensor, bool leaving) {
  if (leaving) {
    if (!leaving_.insert(&tensor).second) return;
    leaving_bytes_ += ResidentBytes(tensor.spec.size_bytes);
    if (is_ranked()) order_->SetAside(tensor);
    return;
  }
  if (leaving_.erase(&tensor) == 0) return;
  leaving_bytes_ -= ResidentBytes(tensor.spec.size_bytes);
  const auto found = places_.find(&tensor);
  if (!is_ranked() || found == places_.end() || aside_.contains(&tensor))
    return;
  order_->PutBack(*residents_[found->second].tensor);
}

std::vector<TensorId> ResidentSet::PickVictims(
    int64_t bytes, int64_t newcomer_use, bool must, int64_t sample,
    absl::FunctionRef<bool(const Tensor&)> may_leave,
    absl::FunctionRef<int64_t(const Tensor&)> next_use) {
  absl::InlinedVector<EvictionCandidate, 16> candidates;
  const size_t count = residents_.size();
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<int64_t>(candidates.size()) >= sample) break;
    const Resident& each = residents_[(hand_ + i) % count];
    if (IsLeaving(*each.tensor) || !may_leave(*each.tensor)) continue;
    candidates.push_back(
        {each.tensor->id, each.room.size_bytes, next_use(*each.tensor)});
  }
  if (count > static_cast<size_t>(sample)) {
    hand_ = (hand_ + static_cast<size_t>(sample)) % count;
  }
  std::vector<TensorId> victims;
  if (candidates.empty() && !must) return victims;
  policy_->PickVictims(bytes, newcomer_use, must, candidates, &victims);
  return victims;
}

}  // namespace terrace
