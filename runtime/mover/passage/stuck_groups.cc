// Groups of queues of bytes for which no room will come.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "runtime/mover/byte_admission.h"
#include "terrace/runtime.h"

namespace terrace {
// What is admitted will end, and so will what moves and what computes; also at
// another memory, which who holds pins here may wait for.
bool ByteAdmission::IsStuck(const Round& round,
                            absl::Span<Tensor* const> tensors) const {
  if (!round.room.AllWaitBut(tensors) && !round.room.FitsNowhere(tensors)) {
    return false;
  }
  for (const TierResidency* const each : parts_.working->all()) {
    if (IsMemory(each->id()) && each->residents().leaving() > 0) return false;
    if (parts_.pins->coming_bytes(each->id()) > 0) return false;
  }
  if (parts_.passage->AnyComesDown()) return false;
  const TierResidency& residency = round.room.residency();
  for (const Customer* const each : parts_.customers->active()) {
    const bool counts = each->bytes.has_value() || each->tier == residency.id();
    if (counts && each->admitted > 0) return false;
  }
  const bool passes =
      residency.id() == kDramTier && parts_.transfers->passing_bytes() > 0;
  return !residency.RangeMayCome(BytesOf(tensors), RoomAwaits::kNoPins,
                                 /*late_fetches=*/passes);
}

bool ByteAdmission::ServeStuck(Round& round, absl::Time now,
                               const std::function<std::string()>& holders,
                               std::vector<QueueError>* errors) {
  const Lacking& chosen = round.oldest_with_pins.customer != nullptr
                              ? round.oldest_with_pins
                              : round.oldest;
  if (round.lowering != nullptr) {
    Tensor* const one[] = {round.lowering};
    if (IsStuck(round, one)) {
      parts_.passage->LowerBeyond(*round.lowering, errors);
      return true;
    }
  }
  if (chosen.customer == nullptr) return false;
  Customer& customer = *chosen.customer;
  Group& group = customer.waiting.at(chosen.group);
  Admission::Tensors tensors;
  // What it wants may have begun to leave for a later group.
  const Admission::Turn turn =
      parts_.admission->Look(customer, group, &tensors, errors);
  if (turn == Admission::Turn::kFailed) {
    parts_.customers->EraseWaiting(customer, chosen.group);
  }
  if (turn != Admission::Turn::kNow) return turn == Admission::Turn::kFailed;
  if (!IsStuck(round, tensors)) return false;
  // What could not be written back is tried once more for it.
  if (!group.tried_writes && parts_.write_back->failed() > 0) {
    group.tried_writes = true;
    parts_.write_back->RetryFailed();
    return true;
  }
  if (customer.tier != round.room.residency().id()) {
    return ServeStuckPassage(round, chosen, tensors, now);
  }
  ByteRoom::Rooms rooms;
  const absl::Status found =
      FindBeyond(round.room.residency(), tensors, &rooms);
  if (found.ok()) {
    ++groups_beyond_;
    parts_.admission->Begin(customer, group, tensors, &rooms, now);
  } else if (round.room.residency().tier().usage().lent_bytes > 0) {
    return false;  // it has room once that comes back
  } else if (!round.room.AllWaitBut(tensors)) {
    // What computes may end, and then what waits for it. A pin that is idle
    // ends when it is asked for.
    round.room.AskFor(BytesOf(tensors), group.room.number);
    return false;
  } else {
    parts_.customers->Fail(
        customer, group,
        Reworded(found, absl::StrCat(absl::string_view(found.message()),
                                     "; held: ", holders())));
  }
  parts_.customers->EraseWaiting(customer, chosen.group);
  return true;
}

// Where its device lacks room as well, that is its device's to say.
bool ByteAdmission::ServeStuckPassage(Round& memory, const Lacking& chosen,
                                      absl::Span<Tensor* const> tensors,
                                      absl::Time now) {
  Customer& customer = *chosen.customer;
  Group& group = customer.waiting.at(chosen.group);
  TierResidency& device = parts_.working->at(customer.tier);
  const std::vector<Tensor*> passing =
      parts_.passage->Passing(group, tensors, device.id());
  ByteRoom::Rooms ranges;
  ByteRoom::Rooms rooms;
  const ByteRoom room(device, *parts_.pins);
  if (memory.room.residency().tier().usage().lent_bytes > 0) return false;
  if (!room.FindFree(tensors, &rooms)) return false;
  const absl::Status beyond = parts_.passage->FindBeyond(passing, &ranges);
  if (beyond.ok()) {
    ++groups_beyond_;
    parts_.admission->Begin(
        customer, group, tensors, &rooms, now,
        MemoryPassage::InOrder(tensors, passing, std::move(ranges)));
  } else {
    room.GiveBack(tensors, &rooms);
    parts_.customers->Fail(customer, group, beyond);
  }
  parts_.customers->EraseWaiting(customer, chosen.group);
  return true;
}

absl::Status ByteAdmission::FindBeyond(TierResidency& residency,
                                       absl::Span<Tensor* const> tensors,
                                       ByteRoom::Rooms* rooms) const {
  rooms->resize(tensors.size());
  absl::Status refused = parts_.write_back->Unwritten();
  if (!refused.ok()) {
    refused = Reworded(refused, absl::StatusCode::kResourceExhausted,
                       absl::StrCat("the budget is full",
                                    absl::string_view(refused.message())));
  }
  for (size_t i = 0; i < tensors.size() && refused.ok(); ++i) {
    Tensor& tensor = *tensors[i];
    if (tensor.at(residency.id()) != nullptr) continue;
    (*rooms)[i] = residency.TakeRoom(tensor);
    if (!(*rooms)[i].empty()) continue;
    const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
    if (tensor.resting() == nullptr || residency.id() != kDramTier) {
      refused = absl::ResourceExhaustedError(absl::StrCat(
          "tensor '", tensor.spec.name, "' of ", tensor.spec.size_bytes,
          " bytes: the budget of ", residency.tier().usage().capacity_bytes,
          " is full, and what is beyond it ",
          tensor.resting() == nullptr ? "has no path to write to"
                                      : "is beside the first memory alone"));
      break;
    }
    absl::StatusOr<Reservation> range = parts_.spill->Allocate(bytes);
    if (!range.ok()) {
      refused = range.status();
      break;
    }
    (*rooms)[i] = residency.windows().OpenBeyond(*std::move(range), tensor);
  }
  if (refused.ok()) return refused;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Reservation& room = (*rooms)[i];
    if (!room.empty()) residency.GiveBack(*tensors[i], std::move(room));
  }
  return refused;
}

}  // namespace terrace
