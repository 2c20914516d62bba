#include "runtime/mover/prefetcher.h"

#include <utility>

#include "terrace/runtime.h"

namespace terrace {
void Prefetcher::Propose(const Customer& customer) {
  if (!parts_.enabled || !customer.waiting.empty()) return;
  if (customer.window == nullptr) return;
  TierResidency& residency = parts_.working->at(customer.tier);
  if (!residency.tier().Health().ok()) return;
  Window& window = *customer.window;
  std::vector<TensorId> upcoming;
  if (!parts_.planner->Upcoming(customer.id, int64_t{2} * window.slots(),
                                &upcoming)) {
    return;
  }
  for (const TensorId id : upcoming) {
    Tensor* const tensor = parts_.table->Find(id);
    if (tensor == nullptr || !MayBeFetched(*tensor, customer.tier) ||
        parts_.admission->HasFailedAhead(*tensor) ||
        ResidentBytes(tensor->spec.size_bytes) > window.stride()) {
      continue;
    }
    FoundPlace found =
        residency.FindSlot(customer.id, window, *tensor, /*prefetch=*/true);
    if (found.space != Space::kFound) return;
    parts_.admission->NoteAhead(*tensor);
    tensor->customer = customer.id;
    parts_.transfers->StartFill(*tensor, std::move(found.room),
                                IoClass::kPrefetch);
  }
}

Reservation Prefetcher::RoomForHint(Tensor& tensor) const {
  TierResidency& residency = parts_.working->at(kDramTier);
  Reservation room = residency.FindRoom(tensor);
  ResidentSet& residents = residency.residents();
  // What a window that opens waits for is not for a hint.
  const bool may_make_room =
      residents.is_ranked() && !residency.windows().holds_room();
  if (!room.empty() || !may_make_room) return room;
  const std::vector<Tensor*> victims = residents.FirstToLeave(
      ResidentBytes(tensor.spec.size_bytes), [&](const Tensor& each) {
        return residency.MayLeave(each) && !parts_.admission->IsAhead(each) &&
               !IsNewerThanBelow(each, residency.id());
      });
  for (Tensor* const victim : victims) residency.Evict(*victim);
  return residency.FindRoom(tensor);
}

void Prefetcher::ServeHints() {
  for (const TensorId id : std::exchange(hints_, {})) {
    Tensor* const tensor = parts_.table->Find(id);
    // What is nearer already stays there.
    if (tensor == nullptr || tensor->delivered() ||
        !MayBeFetched(*tensor, kDramTier)) {
      continue;
    }
    Reservation room = RoomForHint(*tensor);
    if (room.empty()) return;
    parts_.admission->NoteAhead(*tensor);
    parts_.transfers->StartFill(*tensor, std::move(room), IoClass::kPrefetch);
  }
}

}  // namespace terrace
