#include "runtime/mover/prefetcher.h"

#include <utility>

#include "terrace/runtime.h"

namespace terrace {

void Prefetcher::Propose(const Customer& customer) {
  if (!parts_.enabled || !customer.waiting.empty()) return;
  Window& window = *customer.window;
  std::vector<TensorId> upcoming;
  if (!parts_.planner->Upcoming(customer.id, int64_t{2} * window.slots(),
                                &upcoming)) {
    return;
  }
  for (const TensorId id : upcoming) {
    Tensor* const tensor = parts_.table->Find(id);
    if (tensor == nullptr || tensor->at(kDramTier) != nullptr ||
        !tensor->Fetchable() || parts_.admission->HasFailedAhead(*tensor) ||
        ResidentBytes(tensor->spec.size_bytes) > window.stride()) {
      continue;
    }
    FoundPlace found = parts_.residency->FindSlot(customer.id, window, *tensor,
                                                  /*prefetch=*/true);
    if (found.space != Space::kFound) return;
    parts_.admission->NoteAhead(*tensor);
    tensor->customer = customer.id;
    parts_.transfers->StartFill(*tensor, std::move(found.room),
                                IoClass::kPrefetch);
  }
}

void Prefetcher::ServeHints() {
  for (const TensorId id : std::exchange(hints_, {})) {
    Tensor* const tensor = parts_.table->Find(id);
    if (tensor == nullptr || tensor->at(kDramTier) != nullptr ||
        !tensor->Fetchable()) {
      continue;
    }
    Reservation room = parts_.residency->FindRoom(*tensor);
    if (room.empty()) return;
    parts_.admission->NoteAhead(*tensor);
    parts_.transfers->StartFill(*tensor, std::move(room), IoClass::kPrefetch);
  }
}

}  // namespace terrace
