#include "runtime/mover/byte_admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

int64_t BytesOf(absl::Span<Tensor* const> tensors) {
  int64_t bytes = 0;
  for (const Tensor* const tensor : tensors) {
    bytes += ResidentBytes(tensor->spec.size_bytes);
  }
  return bytes;
}

}  // namespace

absl::Status ByteAdmission::CheckOpen(const OpenBytesRequest& request,
                                      const TierResidency& residency) const {
  const int64_t others = residency.windows().open_bytes();
  const TierUsage usage = residency.tier().usage();
  const int64_t budget = usage.capacity_bytes;
  const int64_t lent = usage.lent_bytes;
  if (request.window_bytes <= budget - lent - others) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a window of ", request.window_bytes, " bytes: other windows take ",
      others, " bytes, and the budget is ", budget,
      lent > 0
          ? absl::StrCat(", of which ", lent, " are lent to other jobs for now")
          : ""));
}

void ByteAdmission::Open(const OpenBytesRequest& request) {
  const absl::StatusOr<TierResidency*> named =
      parts_.working->Named(request.tier);
  absl::Status wrong =
      named.ok() ? CheckOpen(request, **named) : named.status();
  if (!wrong.ok()) {
    parts_.ports->Deliver(request.id, std::move(wrong));
    return;
  }
  const Customer& customer =
      Begin(**named, request.window_bytes, request.id.client);
  parts_.ports->Deliver(request.id, OpenedQueue{customer.id, customer.tier});
}

Customer& ByteAdmission::Begin(TierResidency& residency, int64_t window_bytes,
                               ClientId client) {
  parts_.planner->Merge();
  residency.residents().Rank(*parts_.planner);
  // A device's tensors come and go through memory.
  parts_.working->at(kDramTier).residents().Rank(*parts_.planner);
  residency.windows().Promise(window_bytes);
  Customer& customer =
      parts_.customers->OpenBytes(window_bytes, residency.id(), client);
  parts_.planner->Open(customer.id);
  parts_.pins->Open(customer.id, *parts_.planner,
                    residency.residents().ranks_by_next_use());
  return customer;
}

void ByteAdmission::OnClosed(const Customer& customer) {
  parts_.pins->Close(customer.id);
  parts_.working->at(customer.tier)
      .windows()
      .EndPromise(customer.bytes->window_bytes);
}

bool ByteAdmission::NoteUse(const Customer& customer, int lane,
                            const Tensor& tensor) {
  parts_.read_ahead->OnUse(tensor);
  return parts_.planner->OnUse(customer.id, lane, KeyOf(tensor),
                               ResidentBytes(tensor.spec.size_bytes));
}

void ByteAdmission::Touch(const TouchRequest& request) {
  const Customer* const customer = parts_.customers->FindOpen(request.queue);
  if (customer == nullptr) return;
  TierResidency& residency = parts_.working->at(customer->tier);
  for (const TensorId id : request.tensors) {
    Tensor* const tensor = parts_.table->Find(id);
    if (tensor == nullptr) continue;
    NoteUse(*customer, request.lane, *tensor);
    residency.residents().Touch(*tensor);
    parts_.pins->OnUse(customer->id, *tensor);
  }
}

void ByteAdmission::OnEnded(uint64_t token, Tensor& tensor, TierId tier) {
  if (!parts_.pins->OnEnded(token)) return;
  parts_.working->at(tier).residents().PutBack(tensor);
}

void ByteAdmission::Serve(absl::Time now,
                          const std::function<std::string()>& holders,
                          std::vector<QueueError>* errors) {
  Admit(now, holders, errors);
  // What has expired may have kept others from a tensor.
  if (ExpireAll(now, holders)) Admit(now, holders, errors);
  AskBeyond();
}

// With the answers that make them too many, or else as other recalls.
void ByteAdmission::AskBeyond() {
  for (const RecalledPin& each : parts_.pins->AskBeyond()) {
    Customer* const customer = parts_.customers->FindOpen(each.queue);
    if (customer == nullptr) continue;
    if (customer->ready.empty()) {
      parts_.customers->AddRecall(*customer, each.token);
    } else {
      customer->ready.back().recalls.push_back(each.token);
    }
  }
}

bool ByteAdmission::ExpireAll(absl::Time now,
                              const std::function<std::string()>& holders) {
  bool any = false;
  for (Customer* const customer : parts_.customers->active()) {
    if (!customer->bytes.has_value()) continue;
    if (!parts_.admission->HasExpired(*customer, now)) continue;
    parts_.admission->Expire(*customer, now, holders());
    any = true;
  }
  return any;
}

void ByteAdmission::PassRecalls() {
  for (const RecalledPin& each : parts_.pins->TakeAsked()) {
    Customer* const customer = parts_.customers->FindOpen(each.queue);
    if (customer == nullptr) continue;
    parts_.customers->AddRecall(*customer, each.token);
  }
}

void ByteAdmission::Admit(absl::Time now,
                          const std::function<std::string()>& holders,
                          std::vector<QueueError>* errors) {
  bool again = true;
  while (again) {
    lacking_.clear();
    const Waiting waiting = AllWaiting();
    if (waiting.empty()) return;
    std::vector<Round> rounds;
    bool answered = false;
    bool lacks = false;
    for (TierResidency* const each : parts_.working->all()) {
      const Round& round =
          rounds.emplace_back(AdmitAt(*each, waiting, now, errors));
      answered |= round.answered;
      const bool lacks_here = round.oldest.customer != nullptr;
      lacks |= lacks_here;
      if (lacks_here || round.room.kept_bytes() > 0) {
        lacking_.insert(each->id());
      }
    }
    // Who was answered does not wait any more and may have pins that can be
    // asked for, and perhaps no message comes after the answer: those that lack
    // room are looked at again in this turn.
    again = answered && lacks;
    for (size_t i = 0; i < rounds.size() && !answered && !again; ++i) {
      again = ServeStuck(rounds[i], now, holders, errors);
    }
  }
}

ByteAdmission::Waiting ByteAdmission::AllWaiting() const {
  Waiting waiting;
  for (Customer* const customer : parts_.customers->active()) {
    if (!customer->bytes.has_value()) continue;
    for (const auto& [id, group] : customer->waiting) waiting[id] = customer;
  }
  return waiting;
}

ByteAdmission::Round ByteAdmission::AdmitAt(TierResidency& residency,
                                            const Waiting& waiting,
                                            absl::Time now,
                                            std::vector<QueueError>* errors) {
  Round round{.room = ByteRoom(residency, *parts_.pins)};
  for (const auto& [token, users] : parts_.pins->waiting()) {
    round.room.AddWaiting(token);
  }
  // Who waits for another memory's room gives nothing back here either.
  for (const auto& [id, customer] : waiting) {
    const auto found = customer->waiting.find(id);
    if (found == customer->waiting.end()) continue;  // answered at another
    for (const uint64_t token : found->second.in_use) {
      round.room.AddWaiting(token);
    }
  }
  for (const auto& [id, customer] : waiting) {
    if (customer->tier != residency.id()) continue;
    Group& group = customer->waiting.at(id);
    if (!group.headed) {
      group.headed = true;
      group.at_head = now;
      NoteUses(*customer, group);
    }
    if (TryAdmit(*customer, group, round, now, errors)) {
      round.answered = true;
      parts_.customers->EraseWaiting(*customer, id);
    } else {
      round.room.KeepFor(group.room);
    }
  }
  return round;
}

void ByteAdmission::NoteUses(const Customer& customer, Group& group) {
  group.io_class = IoClass::kForeseen;
  for (const Want& want : group.wants) {
    const Tensor* const tensor = parts_.table->Find(want.tensor);
    const bool is_foreseen =
        tensor != nullptr && NoteUse(customer, group.lane, *tensor);
    if (!is_foreseen) group.io_class = IoClass::kDemand;
  }
}

bool ByteAdmission::TryAdmit(Customer& customer, Group& group, Round& round,
                             absl::Time now, std::vector<QueueError>* errors) {
  const bool uses_pins = !group.in_use.empty();
  group.room.uses_pins = uses_pins;
  const auto is_claimed = [&round](const Want& want) {
    const auto found = round.claimed.find(want.tensor.value);
    if (found == round.claimed.end()) return false;
    return found->second || want.access != Access::kRead;
  };
  if (!uses_pins &&
      std::any_of(group.wants.begin(), group.wants.end(), is_claimed)) {
    return false;
  }
  Admission::Tensors tensors;
  const Admission::Turn turn =
      parts_.admission->Look(customer, group, &tensors, errors);
  if (turn == Admission::Turn::kFailed) return true;
  if (turn == Admission::Turn::kLater) {
    for (const Want& want : group.wants) {
      round.claimed[want.tensor.value] |= want.access != Access::kRead;
    }
    return false;
  }
  TierResidency& residency = round.room.residency();
  const bool is_here = std::all_of(
      tensors.begin(), tensors.end(),
      [&](const Tensor* each) { return each->at(residency.id()) != nullptr; });
  // A window that opens is waited for, but not with pins in use.
  if (!is_here && residency.windows().holds_room() && !uses_pins) return false;
  if (IsDevice(residency.id()) &&
      !AreInMemory(group, tensors, residency.id(), errors)) {
    return false;
  }
  ByteRoom::Rooms rooms;
  std::vector<Tensor*> leaving;
  for (Tensor* const tensor : tensors) parts_.working->Keep(*tensor);
  const bool found = round.room.Find(tensors, &group.room, &rooms, &leaving);
  parts_.write_back->StartLeaving(&leaving, errors);
  parts_.working->EndKeep();
  if (found) {
    parts_.admission->Begin(customer, group, tensors, &rooms, now);
    return true;
  }
  group.waited_for_write |= residency.residents().leaving() > 0;
  const Lacking lacking = {&customer, group.id};
  if (round.oldest.customer == nullptr) round.oldest = lacking;
  if (uses_pins && round.oldest_with_pins.customer == nullptr) {
    round.oldest_with_pins = lacking;
  }
  return false;
}

// What is admitted will end, and so will what moves and what computes; also at
// another memory, which who holds pins here may wait for.
bool ByteAdmission::AreInMemory(Group& group, absl::Span<Tensor* const> tensors,
                                TierId device,
                                std::vector<QueueError>* errors) const {
  TierResidency& memory = parts_.working->at(kDramTier);
  bool are = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = *tensors[i];
    if (tensor.at(device) != nullptr) continue;
    if (group.wants[i].access == Access::kOverwrite) continue;
    const Copy* const source = tensor.SourceFor(device);
    if (source == nullptr || IsWorkingTier(source->place.tier())) continue;
    are = false;
    if (tensor.ArrivingAt() != kNoTier) continue;
    // Of a number that is no group's, as its room in memory is another one.
    RoomSeeker seeker = {.number = ~group.room.number};
    ByteRoom room(memory, *parts_.pins);
    ByteRoom::Rooms rooms;
    std::vector<Tensor*> leaving;
    Tensor* const one = &tensor;
    const bool found = room.Find({&one, 1}, &seeker, &rooms, &leaving);
    parts_.write_back->StartLeaving(&leaving, errors);
    if (!found) continue;
    parts_.transfers->StartFill(tensor, std::move(rooms.front()),
                                group.io_class);
  }
  return are;
}

void ByteAdmission::OnFetchFailed(const Tensor& tensor,
                                  const absl::Status& why) {
  for (Customer* const customer : parts_.customers->active()) {
    if (!customer->bytes.has_value() || !IsDevice(customer->tier)) continue;
    std::vector<uint64_t> failed;
    for (const auto& [id, group] : customer->waiting) {
      for (const Want& want : group.wants) {
        if (want.tensor == tensor.id) failed.push_back(id);
      }
    }
    for (const uint64_t id : failed) {
      parts_.customers->Fail(*customer, customer->waiting.at(id), why);
      parts_.customers->EraseWaiting(*customer, id);
    }
  }
}

bool ByteAdmission::IsStuck(const Round& round,
                            absl::Span<Tensor* const> tensors) const {
  if (!round.room.AllWaitBut(tensors) && !round.room.FitsNowhere(tensors)) {
    return false;
  }
  for (const TierResidency* const each : parts_.working->memories()) {
    if (each->residents().leaving() > 0) return false;
    if (parts_.pins->coming_bytes(each->id()) > 0) return false;
  }
  const TierResidency& residency = round.room.residency();
  for (const Customer* const each : parts_.customers->active()) {
    const bool counts = each->bytes.has_value() || each->tier == residency.id();
    if (counts && each->admitted > 0) return false;
  }
  return !residency.RangeMayCome(BytesOf(tensors), RoomAwaits::kNoPins,
                                 /*late_fetches=*/false);
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
