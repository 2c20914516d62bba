#include "runtime/mover/read_ahead.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "terrace/runtime.h"

namespace terrace {
namespace {

// Of a turn: uses that are looked at, and residents for each that lacks room. A
// look costs less than a microsecond, and a use brings the next turn.
constexpr int kMostUses = 256;
constexpr int64_t kMostResidents = 64;

}  // namespace

void ReadAhead::Unused::Add(int64_t tensor, int64_t size_bytes) {
  Erase(tensor);
  const uint64_t place = order.empty() ? 0 : order.rbegin()->first + 1;
  places[tensor] = place;
  order[place] = {tensor, size_bytes};
  bytes += size_bytes;
}

void ReadAhead::Unused::Erase(int64_t tensor) {
  const auto found = places.find(tensor);
  if (found == places.end()) return;
  const auto place = order.find(found->second);
  bytes -= place->second.second;
  order.erase(place);
  places.erase(found);
}

void ReadAhead::OnUse(const Tensor& tensor) {
  waits_for_use_ = false;
  const TensorId key = KeyOf(tensor);
  if (key.value < 0) newest_[key.value] = tensor.id;
  for (auto& [tier, unused] : unused_) unused.Erase(tensor.id.value);
}

void ReadAhead::FollowOrder() {
  const int64_t uses = parts_.planner->uses();
  if (order_ == parts_.planner->order()) {
    looked_ = std::max(int64_t{0}, looked_ - (uses - uses_));
  } else {
    order_ = parts_.planner->order();
    looked_ = 0;
    waits_for_use_ = false;
  }
  uses_ = uses;
}

void ReadAhead::Propose(const absl::flat_hash_set<TierId>& lacking,
                        std::vector<QueueError>* errors) {
  if (!parts_.enabled) return;
  FollowOrder();
  for (int i = 0; i < kMostUses && !waits_for_use_; ++i) {
    const std::optional<TensorId> key = parts_.planner->Expected(looked_);
    Tensor* const tensor = key.has_value() ? Find(*key) : nullptr;
    TierResidency* const residency =
        tensor == nullptr ? nullptr : ResidencyOf(*tensor);
    if (residency != nullptr && lacking.contains(residency->id())) return;
    const Outcome outcome = residency == nullptr
                                ? Outcome::kDone
                                : TryBegin(*tensor, *residency, errors);
    if (outcome == Outcome::kRoomComes) return;
    waits_for_use_ = !key.has_value() || outcome == Outcome::kNoRoom;
    if (!waits_for_use_) ++looked_;
  }
}

Tensor* ReadAhead::Find(TensorId key) const {
  if (key.value >= 0) return parts_.table->Find(key);
  const auto found = newest_.find(key.value);
  return found == newest_.end() ? nullptr : parts_.table->Find(found->second);
}

TierResidency* ReadAhead::ResidencyOf(const Tensor& tensor) const {
  const Customer* const customer = parts_.customers->FindOpen(tensor.customer);
  if (customer == nullptr || !customer->bytes.has_value()) return nullptr;
  return &parts_.working->at(customer->tier);
}

ReadAhead::Outcome ReadAhead::TryBegin(Tensor& tensor, TierResidency& residency,
                                       std::vector<QueueError>* errors) {
  const TierId tier = residency.id();
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  const int64_t most = residency.residents().size_bytes() / 2;
  if (!MayBeFetched(tensor, tier) || parts_.admission->HasFailedAhead(tensor) ||
      bytes > most) {
    return Outcome::kDone;
  }
  Unused& unused = unused_[tier];
  if (unused.bytes + bytes > most) ForgetGone(&unused, tier);
  if (unused.bytes + bytes > most) return Outcome::kNoRoom;
  Reservation room = residency.FindRoom(tensor);
  if (room.empty() && MakeRoom(tensor, residency, errors)) {
    room = residency.FindRoom(tensor);
  }
  if (room.empty()) {
    const bool comes = residency.residents().leaving() > 0;
    return comes ? Outcome::kRoomComes : Outcome::kNoRoom;
  }
  unused.Add(tensor.id.value, bytes);
  parts_.admission->NoteAhead(tensor);
  parts_.transfers->StartFill(tensor, std::move(room), IoClass::kPrefetch);
  return Outcome::kDone;
}

bool ReadAhead::MakeRoom(const Tensor& tensor, TierResidency& residency,
                         std::vector<QueueError>* errors) const {
  int64_t missing = ResidentBytes(tensor.spec.size_bytes) -
                    FreeBytes(residency.tier()) -
                    residency.residents().leaving_bytes();
  // It comes already, or what is free is in parts.
  if (missing <= 0 || residency.windows().holds_room()) return false;
  const int64_t next = parts_.planner->NextUse(KeyOf(tensor));
  const std::vector<Tensor*> victims = residency.residents().FirstToLeave(
      missing,
      [&](const Tensor& each) {
        return each.at(residency.id())->pins == 0 && residency.MayLeave(each) &&
               parts_.planner->NextUse(KeyOf(each)) > next;
      },
      kMostResidents);
  for (const Tensor* const each : victims) {
    missing -= ResidentBytes(each->spec.size_bytes);
  }
  if (missing > 0) return false;
  std::vector<Tensor*> leaving;
  for (Tensor* const each : victims) {
    if (residency.Evict(*each)) leaving.push_back(each);
  }
  parts_.write_back->StartLeaving(&leaving, errors);
  return true;
}

void ReadAhead::ForgetGone(Unused* unused, TierId tier) const {
  while (!unused->order.empty()) {
    const int64_t first = unused->order.begin()->second.first;
    const Tensor* const tensor = parts_.table->Find({first});
    if (tensor != nullptr && tensor->at(tier) != nullptr) return;
    unused->Erase(first);
  }
}

}  // namespace terrace
