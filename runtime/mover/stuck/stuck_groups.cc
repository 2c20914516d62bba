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
  const bool passes = residency.id() == kDramTier &&
                      parts_.transfers->second_bytes(kDramTier) > 0;
  return !residency.RangeMayCome(BytesOf(tensors), RoomAwaits::kNoPins,
                                 /*late_fetches=*/passes);
}

bool ByteAdmission::ServeStuck(Round& round, absl::Time now,
                               const std::function<std::string()>& holders,
                               std::vector<QueueError>* errors) {
  const Lacking& chosen = round.oldest_with_pins.customer != nullptr
                              ? round.oldest_with_pins
                              : round.oldest;
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
  ByteRoom::Rooms rooms;
  TierResidency& residency = round.room.residency();
  const absl::Status found = FindBeyond(residency, tensors, &rooms);
  if (found.ok() &&
      !MemoryPassage::Passing(group.wants, tensors, residency.id()).empty()) {
    // Others have that room kept for them, and memory's is needed as well.
    round.room.GiveBack(tensors, &rooms);
    return false;
  }
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

bool ByteAdmission::ServeStuckDevice(
    const Round& memory, absl::Span<const Round> rounds,
    const std::function<std::string()>& holders) {
  const TierResidency& residency = memory.room.residency();
  const TierUsage usage = residency.tier().usage();
  Lacking chosen = memory.passing;
  std::vector<Tensor*> lacking;
  if (chosen.customer != nullptr) {
    for (const Want& want : chosen.customer->waiting.at(chosen.group).wants) {
      lacking.push_back(parts_.table->Find(want.tensor));
    }
  } else if (memory.lowering != nullptr) {
    lacking.push_back(memory.lowering);
    const TierId device = parts_.working->OfDirty(*memory.lowering).id();
    for (const Round& each : rounds) {
      if (each.room.residency().id() == device) chosen = each.oldest;
    }
  }
  if (chosen.customer == nullptr || usage.lent_bytes > 0) return false;
  if (!memory.room.AllWaitBut(lacking) || !IsStuck(memory, lacking)) {
    return false;
  }
  Customer& customer = *chosen.customer;
  Group& group = customer.waiting.at(chosen.group);
  if (!group.tried_writes && parts_.write_back->failed() > 0) {
    group.tried_writes = true;
    parts_.write_back->RetryFailed();
    return true;
  }
  const absl::Status unwritten = parts_.write_back->Unwritten();
  parts_.customers->Fail(
      customer, group,
      absl::ResourceExhaustedError(absl::StrCat(
          "tensor '", lacking.front()->spec.name, "' of ",
          lacking.front()->spec.size_bytes,
          " bytes finds no room in memory on its way to or from a device: the "
          "budget of ",
          usage.capacity_bytes, " is full",
          absl::string_view(unwritten.message()), "; held: ", holders())));
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
