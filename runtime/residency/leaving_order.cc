#include "runtime/residency/leaving_order.h"

#include <utility>

#include "policies/eviction.h"
#include "terrace/runtime.h"

namespace terrace {

LeavingOrder::Place LeavingOrder::PlaceOf(Tensor& tensor,
                                          int64_t last_use) const {
  Place place{kUnknownUse, last_use, tensor.id.value, &tensor};
  if (!by_next_use_) return place;
  const int64_t next = planner_.NextUse(KeyOf(tensor));
  if (next != kUnknownUse) place.used_at = planner_.position() + next;
  return place;
}

void LeavingOrder::Insert(Tensor& tensor, int64_t last_use) {
  const Place place = PlaceOf(tensor, last_use);
  places_[&tensor] = place;
  order_.insert(place);
}

void LeavingOrder::OnUse(Tensor& tensor) {
  SetAside(tensor);
  last_uses_[&tensor] = ++uses_;
  Insert(tensor, uses_);
}

void LeavingOrder::PutBack(Tensor& tensor) {
  if (places_.contains(&tensor)) return;
  const auto [last, is_new] = last_uses_.try_emplace(&tensor, uses_ + 1);
  if (is_new) ++uses_;
  Insert(tensor, last->second);
}

void LeavingOrder::SetAside(const Tensor& tensor) {
  const auto found = places_.find(&tensor);
  if (found == places_.end()) return;
  order_.erase(found->second);
  places_.erase(found);
}

void LeavingOrder::Forget(const Tensor& tensor) {
  SetAside(tensor);
  last_uses_.erase(&tensor);
}

void LeavingOrder::Refresh() {
  if (!by_next_use_) return;
  if (step_ != planner_.order()) {
    step_ = planner_.order();
    for (const Place& place : std::exchange(order_, {})) {
      Insert(*place.tensor, place.last_use);
    }
    return;
  }
  const int64_t now = planner_.position();
  while (!order_.empty()) {
    const Place last = *order_.rbegin();
    if (last.used_at >= now) return;
    order_.erase(last);
    Insert(*last.tensor, last.last_use);
  }
}

void LeavingOrder::Visit(absl::FunctionRef<bool(Tensor&)> visit, int64_t most) {
  Refresh();
  for (const Place& place : order_) {
    if (most-- <= 0 || !visit(*place.tensor)) return;
  }
}

std::vector<Tensor*> LeavingOrder::First(
    int64_t bytes, absl::FunctionRef<bool(const Tensor&)> may_leave,
    int64_t most) {
  std::vector<Tensor*> first;
  if (bytes <= 0) return first;
  const auto visit = [&](Tensor& tensor) {
    if (!may_leave(tensor)) return true;
    first.push_back(&tensor);
    bytes -= ResidentBytes(tensor.spec.size_bytes);
    return bytes > 0;
  };
  Visit(visit, most);
  return first;
}

}  // namespace terrace
