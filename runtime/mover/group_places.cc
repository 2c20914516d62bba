#include "runtime/mover/group_places.h"

#include <utility>

namespace terrace {

Space GroupPlaces::Find(const Customer& customer, Group& group,
                        absl::Span<Tensor* const> tensors, Rooms* rooms,
                        absl::Status* failure,
                        std::vector<QueueError>* errors) const {
  if (HoldsEnough(customer, group)) return Space::kOwnPins;
  const TierId tier = customer.tier;
  TierResidency& residency = working_.at(tier);
  // From making room for the others: also what they are fetched from, as what
  // leaves a device may need room in memory.
  for (Tensor* const tensor : tensors) working_.Keep(*tensor);
  rooms->resize(tensors.size());
  std::vector<Tensor*> leaving;
  Space space = Space::kFound;
  for (size_t i = 0; i < tensors.size() && space == Space::kFound; ++i) {
    if (tensors[i]->at(tier) != nullptr) continue;
    FoundPlace found = residency.FindPlace(customer.id, *customer.window,
                                           *tensors[i], &leaving);
    space = found.space;
    NoteDrain(found, group);
    if (!found.failure.ok()) *failure = std::move(found.failure);
    (*rooms)[i] = std::move(found.room);
  }
  const Tensor* const leaves = leaving.empty() ? nullptr : leaving.back();
  write_back_.StartLeaving(&leaving, errors);
  working_.EndKeep();
  if (space == Space::kFound) return space;
  if (group.drain == kNoTier && leaves != nullptr) {
    group.drain = DrainTier(*leaves);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Reservation& room = (*rooms)[i];
    if (!room.empty()) residency.GiveBack(*tensors[i], std::move(room));
  }
  return space;
}

bool GroupPlaces::HoldsEnough(const Customer& customer,
                              const Group& group) const {
  if (!working_.at(customer.tier).residents().is_ranked()) return false;
  const int pins = customer.held_pins + customer.coming_pins;
  const int wanted = static_cast<int>(group.wants.size());
  return pins + wanted > customer.window->slots();
}

TierId GroupPlaces::DrainTier(const Tensor& tensor) const {
  if (tensor.drain() != Drain::kNone) {
    return transfers_.DrainTier(tensor);
  }
  const TierId arriving = tensor.ArrivingAt();
  return tensor.being_read() && arriving != kNoTier && IsMemory(arriving)
             ? arriving
             : kNoTier;
}

// Of several write-backs that it waits for, it waited for the one whose slot it
// has in the end.
void GroupPlaces::NoteDrain(const FoundPlace& found, Group& group) const {
  if (found.other == nullptr) return;
  if (found.space == Space::kWriteBack) {
    group.drain = DrainTier(*found.other);
  } else if (group.waited_for_write && found.other->resting() != nullptr) {
    group.drain = found.other->resting()->place.tier();
  }
}

}  // namespace terrace
