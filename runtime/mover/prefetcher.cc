#include "runtime/mover/prefetcher.h"

#include <iterator>
#include <utility>

#include "terrace/runtime.h"

namespace terrace {

void Prefetcher::Propose(const Customers& customers) {
  for (auto queue = watched_.begin(); queue != watched_.end();) {
    const Customer* const customer = customers.FindOpen(*queue);
    const bool goes_on = parts_.enabled && customer != nullptr &&
                         customer->window != nullptr &&
                         (!customer->waiting.empty() || FetchFor(*customer));
    queue = goes_on ? std::next(queue) : watched_.erase(queue);
  }
}

bool Prefetcher::FetchFor(const Customer& customer) {
  TierResidency& residency = parts_.working->at(customer.tier);
  if (!residency.tier().Health().ok()) return false;
  Window& window = *customer.window;
  std::vector<TensorId> upcoming;
  if (!parts_.planner->Upcoming(customer.id, int64_t{2} * window.slots(),
                                &upcoming)) {
    return false;
  }
  bool is_awaited = false;
  for (const TensorId id : upcoming) {
    Tensor* const tensor = parts_.table->Find(id);
    if (tensor == nullptr || parts_.admission->HasFailedAhead(*tensor) ||
        ResidentBytes(tensor->spec.size_bytes) > window.stride()) {
      continue;
    }
    if (!MayBeFetched(*tensor, customer.tier)) {
      // It is here, or is lost; else something has it for now.
      is_awaited = is_awaited || (tensor->at(customer.tier) == nullptr &&
                                  tensor->SourceFor(customer.tier) != nullptr);
      continue;
    }
    FoundPlace found =
        residency.FindSlot(customer.id, window, *tensor, /*prefetch=*/true);
    if (found.space != Space::kFound) {
      // What failed there may end by others: a late fetch, a refused write.
      return is_awaited || found.space != Space::kFailed || !found.failure.ok();
    }
    parts_.admission->NoteAhead(*tensor);
    tensor->customer = customer.id;
    parts_.transfers->StartFill(*tensor, std::move(found.room),
                                IoClass::kPrefetch);
  }
  return is_awaited;
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
