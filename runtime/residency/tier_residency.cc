#include "runtime/residency/tier_residency.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// How many residents one decision looks at: it must not cost more than the
// transfer it is about.
constexpr int64_t kEvictionSample = 64;

// What the slots of a window have against a newcomer.
struct SlotSearch {
  int victim = -1;
  int64_t victim_use = -1;
  bool moving = false;
  const Tensor* writing = nullptr;
  bool own_pins = false;
  absl::Status failure;
};

bool Has(const std::vector<const Tensor*>& tensors, const Tensor& tensor) {
  return std::find(tensors.begin(), tensors.end(), &tensor) != tensors.end();
}

// Whether those leave a range of so many bytes between them.
bool LeaveRange(std::vector<Extent> taken, int64_t capacity_bytes,
                int64_t bytes) {
  taken.push_back({capacity_bytes, 0});
  std::sort(taken.begin(), taken.end(), [](const Extent& a, const Extent& b) {
    return a.offset < b.offset;
  });
  int64_t end = 0;
  for (const Extent& each : taken) {
    if (each.offset - end >= bytes) return true;
    end = std::max(end, each.end());
  }
  return false;
}

// Whether a pin on a device has the same contents, and may write them. A queue
// of bytes keeps its pins, so that memory would be full of what has come up to
// a device, and have no room for what passes.
bool IsHeldAbove(const Tensor& tensor, const ResidentSet& residents) {
  if (!residents.is_ranked() || !tensor.write_pinned()) return false;
  for (const Copy& copy : tensor.all()) {
    const bool is_whole = copy.state == CopyState::kWhole &&
                          copy.generation == tensor.generation();
    if (copy.pins > 0 && is_whole && IsDevice(copy.place.tier())) return true;
  }
  return false;
}

}  // namespace

TierResidency::TierResidency(TierResidencyParts parts)
    : tier_(*parts.tier),
      id_(tier_.id()),
      below_(parts.below),
      table_(*parts.table),
      pins_(*parts.pins),
      planner_(*parts.planner),
      residents_(std::move(parts.eviction)),
      windows_(id_) {}

FoundPlace TierResidency::FindPlace(int64_t queue, Window& window,
                                    Tensor& tensor,
                                    std::vector<Tensor*>* leaving) {
  FoundPlace found;
  // No pin of a queue with slots is in the way of what queues of bytes want.
  if (!residents_.is_ranked()) {
    found.room = FindRoom(tensor);
    // The newcomer need not wait for the rest of the room: it may take a slot.
    if (found.room.empty() &&
        EvictSome(ResidentBytes(tensor.spec.size_bytes),
                  planner_.NextUse(KeyOf(tensor)), /*must=*/false,
                  kEvictionSample, leaving)) {
      found.room = FindRoom(tensor);
    }
  }
  if (found.room.empty()) {
    return FindSlot(queue, window, tensor, /*prefetch=*/false);
  }
  found.space = Space::kFound;
  return found;
}

Reservation TierResidency::FindRoom(Tensor& tensor) {
  return windows_.holds_room() ? Reservation() : TakeRoom(tensor);
}

Reservation TierResidency::TakeRoom(Tensor& tensor) {
  Reservation room = FindRange(ResidentBytes(tensor.spec.size_bytes));
  if (!room.empty()) residents_.Add(tensor, room.extent());
  return room;
}

bool TierResidency::EvictSome(int64_t bytes, int64_t newcomer_use, bool must,
                              int64_t sample, std::vector<Tensor*>* leaving) {
  const std::vector<TensorId> victims = residents_.PickVictims(
      bytes, newcomer_use, must, sample,
      [this](const Tensor& tensor) { return MayLeave(tensor); },
      [this](const Tensor& tensor) { return planner_.NextUse(KeyOf(tensor)); });
  const int64_t free_bytes = FreeBytes(tier_);
  for (const TensorId id : victims) {
    Tensor& victim = *table_.Find(id);
    if (Evict(victim)) leaving->push_back(&victim);
  }
  return FreeBytes(tier_) != free_bytes;
}

bool TierResidency::Evict(Tensor& tensor) {
  if (!IsFree(tensor) || residents_.IsLeaving(tensor)) return false;
  ++evictions_;
  if (!IsNewerThanBelow(tensor, id_) || IsHeldAbove(tensor, residents_)) {
    Drop(tensor);
    return false;
  }
  residents_.SetLeaving(tensor, true);
  return true;
}

bool TierResidency::IsFree(const Tensor& tensor, const Copy& copy) const {
  return copy.idle() && tensor.drain() == Drain::kNone && !Has(kept_, tensor);
}

bool TierResidency::MayLeave(const Tensor& tensor) const {
  if (!IsFree(tensor) || tensor.refusals.gave_up()) return false;
  if (!IsNewerThanBelow(tensor, id_)) return true;
  // What a writer on the other tier may yet fall back on stays.
  if (tensor.write_pinned()) return IsHeldAbove(tensor, residents_);
  return CanGoDown(tensor);
}

bool TierResidency::CanGoDown(const Tensor& tensor) const {
  if (tensor.resting() != nullptr) return true;
  return below_ != nullptr &&
         ResidentBytes(tensor.spec.size_bytes) <= FreeBytes(*below_);
}

FoundPlace TierResidency::FindSlot(int64_t queue, Window& window,
                                   Tensor& tensor, bool prefetch) {
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  SlotSearch search;
  for (int slot = 0; slot < window.slots(); ++slot) {
    if (!window.taken(slot)) {
      return {Space::kFound, window.Take(slot, tensor, bytes), {}, nullptr};
    }
    const Tensor* const owner = window.owner(slot);
    if (owner == nullptr) {
      search.failure = window.late(slot);
      continue;
    }
    const Copy* const copy = owner->at(id_);
    if (copy == nullptr) continue;  // placed a moment ago for the same group
    const bool is_free = IsFree(*owner, *copy);
    if (is_free && !IsNewerThanBelow(*owner, id_)) {
      const int64_t use = planner_.NextUse(KeyOf(*owner));
      if (use > search.victim_use) {
        search.victim_use = use;
        search.victim = slot;
      }
    } else if (copy->delivered() && (copy->pins > 0 || Has(kept_, *owner))) {
      if (search.moving) continue;  // which decides, whoever pins
      const PinnedBy by = pins_.WhoPins(*owner, id_, queue);
      search.own_pins |= by.own && !by.others;
      search.moving |= by.others;
    } else if (owner->refusals.gave_up()) {
      search.failure = owner->refusals.error();
    } else if (is_free && !CanGoDown(*owner)) {
      search.failure = absl::ResourceExhaustedError(
          "the budget is full and there is no path to write to");
    } else {
      search.moving = true;  // on its way in or out
      if (owner->drain() == Drain::kSealing ||
          owner->drain() == Drain::kMoving ||
          (below_ != nullptr && copy->reads > 0)) {
        search.writing = owner;
      }
    }
  }
  if (search.victim >= 0 &&
      (!prefetch || search.victim_use > planner_.NextUse(KeyOf(tensor)))) {
    Tensor* const victim = window.owner(search.victim);
    Drop(*victim);
    return {
        Space::kFound, window.Take(search.victim, tensor, bytes), {}, victim};
  }
  Space space = search.own_pins ? Space::kOwnPins : Space::kFailed;
  if (search.moving) {
    space = search.writing != nullptr ? Space::kWriteBack : Space::kWait;
  }
  return {space, {}, std::move(search.failure), search.writing};
}

void TierResidency::GiveBack(const Tensor& tensor, Reservation room) {
  room.Reset();
  residents_.Remove(tensor);
}

void TierResidency::Drop(Tensor& tensor) {
  tensor.Drop(id_);
  OnGone(tensor, nullptr, absl::OkStatus());
}

void TierResidency::OnGone(const Tensor& tensor, const Reservation* late,
                           const absl::Status& why) {
  residents_.Remove(tensor);
  residents_.SetLeaving(tensor, false);
  windows_.NoteLoss(tensor.customer);
  if (late != nullptr) windows_.Disown(*late, why);
}

const Window* TierResidency::WindowOf(const Tensor& tensor) const {
  const Copy* const copy = tensor.at(id_);
  if (copy == nullptr || copy->place.from() == &tier_) return nullptr;
  return static_cast<const Window*>(copy->place.from());
}

Reservation TierResidency::FindRange(int64_t bytes) {
  // What has no room gets no sentence about it.
  if (bytes > FreeBytes(tier_)) return {};
  absl::StatusOr<std::optional<Reservation>> room =
      tier_.Allocate(bytes, /*must=*/true);
  if (!room.ok() || !room->has_value()) return {};
  return std::move(**room);
}

// What is missing first, as much as all of it only if what is then free is in
// parts.
void TierResidency::EvictForRange(int64_t bytes,
                                  std::vector<Tensor*>* leaving) {
  const int64_t missing = bytes - FreeBytes(tier_);
  EvictSome(missing > 0 ? missing : bytes, /*newcomer_use=*/0, /*must=*/true,
            static_cast<int64_t>(residents_.all().size()), leaving);
}

bool TierResidency::RangeMayCome(int64_t bytes, RoomAwaits awaits,
                                 bool late_fetches) const {
  const bool pins_too = awaits == RoomAwaits::kPins;
  const auto may_come = [this, pins_too](const Window& window) {
    for (int slot = 0; slot < window.slots(); ++slot) {
      const Tensor* const owner = window.owner(slot);
      const Copy* const copy = owner == nullptr ? nullptr : owner->at(id_);
      if (copy == nullptr) continue;
      if (copy->pins > 0 && !copy->arriving()) {
        if (!pins_too) return false;
      } else if (owner->refusals.gave_up() && IsNewerThanBelow(*owner, id_)) {
        return false;  // its write waits for another request to try it again
      }
    }
    return true;
  };
  if (late_fetches || windows_.AnyClosing(may_come)) return true;
  for (const ResidentSet::Resident& each : residents_.all()) {
    const Copy& copy = *each.tensor->at(id_);
    if (residents_.IsLeaving(*each.tensor)) return true;
    if (IsFree(*each.tensor, copy)) continue;
    if (pins_too || copy.arriving() || copy.pins == 0) return true;
  }
  if (!pins_too) return false;
  // So may the room of open windows, if they are all that is between.
  std::vector<Extent> stay = windows_.ClosingRooms();
  for (const ResidentSet::Resident& each : residents_.all()) {
    stay.push_back(each.room);
  }
  return LeaveRange(std::move(stay), tier_.usage().capacity_bytes, bytes);
}

void TierResidency::CloseEmptyWindows() {
  windows_.Sweep([this](const Window& window) {
    for (int slot = 0; slot < window.slots(); ++slot) {
      Tensor* const owner = window.owner(slot);
      if (owner != nullptr && IsFree(*owner) &&
          !IsNewerThanBelow(*owner, id_)) {
        Drop(*owner);
      }
    }
  });
}

}  // namespace terrace
