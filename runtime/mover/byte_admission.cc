#include "runtime/mover/byte_admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {
absl::Status ByteAdmission::CheckOpen(const OpenBytesRequest& request,
                                      const TierResidency& residency) const {
  const absl::Status health = residency.tier().Health();
  if (!health.ok()) {
    return Reworded(health, absl::StrCat("a queue at ", request.tier, ": ",
                                         absl::string_view(health.message())));
  }
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
  // What goes to a device passes through the first memory, and what leaves one
  // comes there.
  if (IsDevice(residency.id())) {
    parts_.working->at(kDramTier).residents().Rank(*parts_.planner);
  }
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
    if (waiting.empty() && parts_.write_back->lowering().empty()) return;
    std::vector<Round> rounds;
    rounds.reserve(parts_.working->all().size());
    const auto admit = [&](absl::Span<TierResidency* const> tiers) {
      const size_t first = rounds.size();
      for (TierResidency* const each : tiers) {
        rounds.push_back(MakeRound(*each, waiting));
      }
      AdmitAt(absl::MakeSpan(rounds).subspan(first), waiting, now, errors);
    };
    std::vector<TierResidency*> joined = {parts_.working->memories().front()};
    for (TierResidency* const each : parts_.working->devices()) {
      joined.push_back(each);
    }
    admit(joined);
    for (size_t i = 1; i < parts_.working->memories().size(); ++i) {
      admit(parts_.working->memories().subspan(i, 1));
    }
    bool answered = false;
    bool lacks = false;
    for (const Round& round : rounds) {
      answered |= round.answered;
      lacks |= round.lacks();
      if (round.lacks() || round.room.kept_bytes() > 0) {
        lacking_.insert(round.room.residency().id());
      }
    }
    // Who was answered does not wait any more and may have pins that can be
    // asked for, and perhaps no message comes after the answer: those that lack
    // room are looked at again in this turn.
    again = answered && lacks;
    for (size_t i = 0; i < rounds.size() && !answered && !again; ++i) {
      again = ServeStuck(rounds[i], now, holders, errors) ||
              ServeStuckDevice(rounds[i], rounds, holders);
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

void ByteAdmission::Round::Lack(const Lacking& group, bool uses_pins) {
  if (oldest.customer == nullptr) oldest = group;
  if (uses_pins && oldest_with_pins.customer == nullptr) {
    oldest_with_pins = group;
  }
}

ByteAdmission::Round ByteAdmission::MakeRound(TierResidency& residency,
                                              const Waiting& waiting) const {
  Round round{.room = ByteRoom(residency, *parts_.pins)};
  for (const auto& [token, users] : parts_.pins->waiting()) {
    round.room.AddWaiting(token);
  }
  // Who waits for another tier's room gives nothing back here either.
  for (const auto& [id, customer] : waiting) {
    const auto found = customer->waiting.find(id);
    if (found == customer->waiting.end()) continue;  // answered at another
    for (const uint64_t token : found->second.in_use) {
      round.room.AddWaiting(token);
    }
  }
  return round;
}

void ByteAdmission::AdmitAt(absl::Span<Round> rounds, const Waiting& waiting,
                            absl::Time now, std::vector<QueueError>* errors) {
  Round& memory = rounds.front();
  const bool is_first = memory.room.residency().id() == kDramTier;
  for (Lowering& each : parts_.write_back->lowering()) each.is_served = false;
  const auto lower = [&](uint64_t before) {
    if (!is_first) return;
    Tensor* const waits = parts_.passage->LowerAll(memory.room, before, errors);
    if (memory.lowering == nullptr) memory.lowering = waits;
  };
  Claimed claimed;
  for (const auto& [id, customer] : waiting) {
    const TierId tier = customer->tier;
    const auto round =
        std::find_if(rounds.begin(), rounds.end(), [tier](const Round& each) {
          return each.room.residency().id() == tier;
        });
    if (round == rounds.end()) continue;
    lower(id);
    Group& group = customer->waiting.at(id);
    if (!group.headed) {
      group.headed = true;
      group.at_head = now;
      NoteUses(*customer, group);
    }
    if (TryAdmit(*customer, group, *round, memory, &claimed, now, errors)) {
      round->answered = true;
      parts_.customers->EraseWaiting(*customer, id);
    } else {
      round->room.KeepFor(group.room);
      if (round != rounds.begin()) memory.room.KeepFor(group.passage);
    }
  }
  lower(UINT64_MAX);
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
                             Round& memory, Claimed* claimed, absl::Time now,
                             std::vector<QueueError>* errors) {
  const bool uses_pins = !group.in_use.empty();
  group.room.uses_pins = group.passage.uses_pins = uses_pins;
  const auto is_claimed = [claimed](const Want& want) {
    const auto found = claimed->find(want.tensor.value);
    if (found == claimed->end()) return false;
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
      (*claimed)[want.tensor.value] |= want.access != Access::kRead;
    }
    return false;
  }
  const TierId tier = round.room.residency().id();
  const std::vector<Tensor*> passing =
      MemoryPassage::Passing(group.wants, tensors, tier);
  if (IsDevice(tier)) {
    absl::Status never =
        parts_.passage->Check(tensors, passing, round.room.residency());
    if (!never.ok()) {
      parts_.customers->Fail(customer, group, std::move(never));
      return true;
    }
  }
  Places places;
  if (!FindPlaces(group, tensors, passing, round, memory, {&customer, group.id},
                  &places, errors)) {
    return false;
  }
  parts_.admission->Begin(customer, group, tensors, &places.rooms, now,
                          std::move(places.passing));
  return true;
}

// Of both tiers in one turn, or of none: what is found at the device is given
// back where memory lacks room, so that whoever needs the device alone has it
// meanwhile. What others left to the group is kept for it on both.
bool ByteAdmission::FindPlaces(Group& group, absl::Span<Tensor* const> tensors,
                               absl::Span<Tensor* const> passing, Round& round,
                               Round& memory, const Lacking& as, Places* places,
                               std::vector<QueueError>* errors) {
  const bool uses_pins = group.room.uses_pins;
  TierResidency& residency = round.room.residency();
  const bool is_here = std::all_of(
      tensors.begin(), tensors.end(),
      [&](const Tensor* each) { return each->at(residency.id()) != nullptr; });
  // A window that opens is waited for, but not with pins in use.
  const bool is_held =
      (!is_here && residency.windows().holds_room()) ||
      (!passing.empty() && memory.room.residency().windows().holds_room());
  if (is_held && !uses_pins) return false;
  std::vector<Tensor*> leaving;
  for (Tensor* const tensor : tensors) parts_.working->Keep(*tensor);
  const bool found =
      round.room.Find(tensors, &group.room, &places->rooms, &leaving);
  ByteRoom::Rooms ranges;
  const bool passes =
      passing.empty() || memory.room.Find(passing, &group.passage, &ranges,
                                          &leaving, /*passing=*/true);
  parts_.write_back->StartLeaving(&leaving, errors);
  parts_.working->EndKeep();
  if (found && passes) {
    places->passing =
        MemoryPassage::InOrder(tensors, passing, std::move(ranges));
    return true;
  }
  if (found) round.room.GiveBack(tensors, &places->rooms);
  group.waited_for_write |= residency.residents().leaving() > 0;
  if (!found) round.Lack(as, uses_pins);
  if (!passes && memory.passing.customer == nullptr) memory.passing = as;
  return false;
}

}  // namespace terrace
