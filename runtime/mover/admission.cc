#include "runtime/mover/admission.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "runtime/mover/refusal.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {

void Admission::Admit(Customer& customer, absl::Time now,
                      std::vector<QueueError>* errors) {
  if (customer.bytes.has_value()) return;  // byte_admission.h
  customer.blocked_by_own_pins = false;
  customer.blocked_also = absl::OkStatus();
  while (!customer.waiting.empty()) {
    Group& head = customer.waiting.begin()->second;
    const uint64_t id = head.id;
    if (!head.headed) {
      head.headed = true;
      head.at_head = now;
      // Before space is sought: from here on a tensor's next use is the one
      // after this, also its own.
      if (customer.step.has_value()) NoteAccess(customer, head);
    }
    if (!TryAdmit(customer, head, now, errors)) break;
    parts_.customers->EraseWaiting(customer, id);
  }
  if (customer.admitted > 0) customer.blocked_by_own_pins = false;
  const bool waits = !customer.waiting.empty() || customer.admitted > 0;
  if (waits && customer.held_pins == 0) {
    customer.blocked_since = std::min(customer.blocked_since, now);
  }
}

void Admission::NoteAccess(const Customer& customer, Group& group) {
  group.io_class = IoClass::kForeseen;
  for (const Want& want : group.wants) {
    const Tensor* const tensor = parts_.table->Find(want.tensor);
    // No window gives its memory to others, and where all customers' tensors
    // leave in one order none is sure to stay.
    const ResidentSet& residents =
        parts_.working->at(customer.tier).residents();
    const bool stays =
        tensor != nullptr && !residents.is_ranked() && residents.Has(*tensor);
    const int64_t bytes =
        tensor == nullptr ? 0 : ResidentBytes(tensor->spec.size_bytes);
    const TensorId key = tensor == nullptr ? want.tensor : KeyOf(*tensor);
    if (!parts_.planner->OnAccess(customer.id, key, stays, bytes)) {
      group.io_class = IoClass::kDemand;
    }
  }
}

bool Admission::HasExpired(const Customer& customer, absl::Time now) const {
  return !customer.deadlines.empty() &&
         customer.deadlines.begin()->first <= now;
}

void Admission::Expire(Customer& customer, absl::Time now,
                       const std::string& holders) {
  while (HasExpired(customer, now)) {
    const Group& group =
        customer.waiting.at(customer.deadlines.begin()->second);
    parts_.customers->Fail(customer, group,
                           absl::ResourceExhaustedError(absl::StrCat(
                               "group ", group.tag,
                               " was not admitted in time; held: ", holders)));
    parts_.customers->EraseWaiting(customer, group.id);
  }
}

Admission::Turn Admission::Look(Customer& customer, Group& group,
                                Tensors* tensors,
                                std::vector<QueueError>* errors) {
  for (const Want& want : group.wants) {
    Tensor* const tensor = parts_.table->Find(want.tensor);
    absl::Status refusal =
        RefusalOf(want, tensor, parts_.working->at(customer.tier).tier(),
                  *parts_.transfers, *parts_.resting);
    if (!refusal.ok()) {
      if (tensor != nullptr && !tensor->loss().ok()) {
        errors->push_back({customer.id, refusal});
      }
      parts_.customers->Fail(customer, group, std::move(refusal));
      return Turn::kFailed;
    }
    if (!CanPin(want, *tensor, customer, group)) return Turn::kLater;
    tensors->push_back(tensor);
  }
  return Turn::kNow;
}

// True when the group left the queue's front: admitted, ready or failed.
bool Admission::TryAdmit(Customer& customer, Group& group, absl::Time now,
                         std::vector<QueueError>* errors) {
  Tensors tensors;
  const Turn turn = Look(customer, group, &tensors, errors);
  if (turn != Turn::kNow) return turn == Turn::kFailed;
  // All wants can be had as far as pins go; now space.
  absl::Status failure;
  GroupPlaces::Rooms rooms;
  const Space space =
      places_.Find(customer, group, tensors, &rooms, &failure, errors);
  if (space != Space::kFound) {
    customer.blocked_by_own_pins = space == Space::kOwnPins;
    if (space == Space::kOwnPins) customer.blocked_also = failure;
    if (space == Space::kWriteBack) group.waited_for_write = true;
    if (space == Space::kFailed) {
      parts_.customers->Fail(customer, group, failure);
    }
    return space == Space::kFailed;
  }
  Begin(customer, group, tensors, &rooms, now);
  return true;
}

void Admission::Begin(Customer& customer, Group& group,
                      absl::Span<Tensor* const> tensors,
                      GroupPlaces::Rooms* rooms, absl::Time now,
                      GroupPlaces::Rooms passing) {
  group.admitted = now;
  group.held.assign(group.wants.size(), true);
  ++customer.admitted;
  customer.coming_pins += static_cast<int>(group.wants.size());
  // EraseWaiting takes the wants of the group as it stands there: none.
  auto& [queue, kept] = admitted_[group.id];
  queue = customer.id;
  kept = std::move(group);
  group.wants.clear();
  passing.resize(kept.wants.size());
  for (size_t i = 0; i < kept.wants.size(); ++i) {
    Hold(customer, kept.wants[i], *tensors[i], std::move((*rooms)[i]),
         std::move(passing[i]), kept);
  }
  if (kept.missing == 0) Finish(customer, kept, Edge());
}

// Whether pins and transfers allow this want now. A writer waits for readers
// and for the transfer out, which gives way to it. There is one transfer a
// tensor: what comes to another tier, or leaves it, is waited for, unless the
// copy that is wanted is there.
bool Admission::CanPin(const Want& want, Tensor& tensor, Customer& customer,
                       Group& group) {
  const bool reads = want.access == Access::kRead;
  if (tensor.write_pinned() || (!reads && tensor.pins() > 0)) {
    parts_.byte_pins->AskForAccess(tensor);
    customer.blocked_by_own_pins =
        !parts_.pins->WhoPins(tensor, customer.id).others;
    return false;
  }
  const bool is_here = tensor.at(customer.tier) != nullptr;
  const TierId arriving = tensor.ArrivingAt();
  // A writer also waits for the end of what reads another copy.
  const bool waits = arriving == customer.tier ? !reads && tensor.being_read()
                                               : !reads || !is_here;
  if (arriving != kNoTier && waits) {
    parts_.transfers->Promote(tensor, group.io_class);
    return false;
  }
  if ((reads && is_here) || tensor.drain() == Drain::kNone) return true;
  group.waited_for_write = true;
  group.drain = places_.DrainTier(tensor);
  if (!reads) parts_.write_back->Yield(tensor);
  return false;
}

void Admission::CountHit(const Tensor& tensor, Group& group) {
  if (ahead_.erase(tensor.id.value) == 0) return;
  ++counts_.prefetch_hits;
  ++group.ahead;
}

// Takes the want's hold; starts the fetch when there is nothing to pin yet.
void Admission::Hold(Customer& customer, const Want& want, Tensor& tensor,
                     Reservation room, Reservation passing, Group& group) {
  const TierId tier = customer.tier;
  TierResidency& residency = parts_.working->at(tier);
  const bool absent = tensor.at(tier) == nullptr;
  const bool writes = want.access != Access::kRead;
  tensor.customer = customer.id;
  residency.Stay(tensor);
  if (writes) parts_.write_back->EndYield(tensor);
  if (tensor.drain() == Drain::kNone || tensor.drain() == Drain::kLate) {
    tensor.refusals.Forget();
  }
  failed_ahead_.erase(tensor.id.value);
  residency.residents().Touch(tensor);
  if (absent) {
    ahead_.erase(tensor.id.value);
    if (want.access == Access::kOverwrite) {
      tensor.BeginOverwrite(std::move(room));
      tensor.Hold(tier, want.access);
      return;
    }
    ++counts_.demand_reads;
    parts_.transfers->StartFill(tensor, std::move(room), group.io_class,
                                std::move(passing));
    tensor.Hold(tier, want.access);
  } else {
    tensor.Hold(tier, want.access);
    if (tensor.Delivered(tier)) {
      ++counts_.tier_hits[parts_.working->IndexOf(tier)];
      CountHit(tensor, group);
      return;
    }
    CountHit(tensor, group);
    if (tensor.at(tier)->state == CopyState::kFilling) {
      parts_.transfers->Promote(tensor, group.io_class);
    }
  }
  group.fetched = true;
  ++group.missing;
  waiters_[&tensor].push_back(group.id);
}

void Admission::OnWhole(const Arrival& arrival) {
  const auto found = waiters_.find(arrival.tensor);
  if (found == waiters_.end()) return;
  const std::vector<uint64_t> groups = std::move(found->second);
  waiters_.erase(found);
  for (const uint64_t id : groups) {
    const auto admitted = admitted_.find(id);
    if (admitted == admitted_.end()) continue;
    Group& group = admitted->second.second;
    if (--group.missing > 0) continue;
    Finish(*parts_.customers->Find(admitted->second.first), group,
           arrival.edge);
  }
}

void Admission::OnFetchFailed(const Tensor& tensor, const absl::Status& why) {
  const auto found = waiters_.find(&tensor);
  if (found == waiters_.end()) return;
  const std::vector<uint64_t> groups = std::move(found->second);
  waiters_.erase(found);
  for (const uint64_t id : groups) {
    const auto admitted = admitted_.find(id);
    if (admitted == admitted_.end()) continue;
    Group& group = admitted->second.second;
    if (group.failure.ok()) group.failure = why;
    for (size_t i = 0; i < group.wants.size(); ++i) {
      if (group.wants[i].tensor == tensor.id) group.held[i] = false;
    }
    if (--group.missing > 0) continue;  // its other fetches are under way
    Finish(*parts_.customers->Find(admitted->second.first), group, Edge());
  }
}

// All fetches of an admitted group have ended.
void Admission::Finish(Customer& customer, Group& group, Edge last) {
  ReadyGroup ready;
  ready.tag = group.tag;
  if (!group.failure.ok() || customer.closed || refusing_) {
    ReleaseHolds(customer, group);
    ready.grants = group.failure.ok()
                       ? absl::CancelledError("the queue was closed")
                       : group.failure;
    parts_.customers->AddReady(customer, std::move(ready));
    EraseAdmitted(customer, group.id);
    return;
  }
  const absl::Duration waited = group.admitted - group.at_head;
  const absl::Time now = parts_.clock->Now();
  const absl::Duration fetched = now - group.admitted;
  if (group.fetched && fetched >= waited) {
    ready.cause = WaitCause::kRead;
  } else if (waited > absl::ZeroDuration()) {
    ready.cause =
        group.waited_for_write ? WaitCause::kWriteBack : WaitCause::kSpace;
  }
  CountBlocked(customer, group, ready.cause, last, now);
  Grants grants;
  for (const Want& want : group.wants) {
    grants.push_back(MakeGrant(customer, want, &ready.beyond_bytes));
  }
  for (const uint64_t token : group.in_use) parts_.byte_pins->OnInUse(token);
  ready.grants = std::move(grants);
  ready.ahead = group.ahead;
  parts_.customers->AddReady(customer, std::move(ready));
  EraseAdmitted(customer, group.id);
}

Grant Admission::MakeGrant(Customer& customer, const Want& want,
                           int64_t* beyond_bytes) const {
  const TierId tier = customer.tier;
  Tensor& tensor = *parts_.table->Find(want.tensor);
  const uint64_t token = parts_.pins->Grant(
      tensor, tier, customer.id, want.access, TokensOf(customer.client));
  ++customer.held_pins;
  if (customer.bytes.has_value()) {
    parts_.byte_pins->OnGranted(token, tensor, tier, customer.id);
    // Its room is another queue's, or beyond the budget.
    const Window* const window = parts_.working->at(tier).WindowOf(tensor);
    if (window != nullptr) parts_.byte_pins->Ask(token);
    if (window != nullptr && window->is_beyond()) {
      *beyond_bytes += window->size_bytes();
    }
  }
  return {.token = token,
          .tensor = tensor.id,
          .offset = tensor.at(tier)->place.extent().offset + kTensorHeaderBytes,
          .size_bytes = tensor.spec.size_bytes};
}

// The queue's wait ends, whichever of its groups is ready first: it counts as
// its customer has it, by that group's cause.
void Admission::CountBlocked(const Customer& customer, const Group& group,
                             WaitCause cause, Edge last, absl::Time now) {
  const absl::Time since = customer.blocked_since;
  if (since >= now || cause == WaitCause::kNone) return;
  const bool on_device = IsDevice(customer.tier);
  const TierId memory = on_device ? kDramTier : customer.tier;
  Edge edge = cause == WaitCause::kRead ? last : Edge{memory, group.drain};
  if (edge.to == kNoTier) return;
  // Of two legs the first, which is on the resting tier's side where there is
  // one.
  if (!IsMemory(edge.from) && !IsMemory(edge.to)) edge.to = kDramTier;
  // What a device has comes down.
  if (edge.from == edge.to) {
    edge.from = on_device ? customer.tier : TierId{TierKind::kHbm, 0};
  }
  parts_.links->AddBlocked(edge, now - since);
}

// Undoes the holds of a group that failed: as ReleaseUnchanged. Those of the
// copies that failed are gone already.
void Admission::ReleaseHolds(const Customer& customer, Group& group) {
  const TierId tier = customer.tier;
  TierResidency& residency = parts_.working->at(tier);
  for (size_t i = 0; i < group.wants.size(); ++i) {
    if (!group.held[i]) continue;
    const Want& want = group.wants[i];
    Tensor& tensor = *parts_.table->Find(want.tensor);
    tensor.Unhold(tier, want.access);
    residency.windows().OnUsed(residency.WindowOf(tensor));
    if (want.access == Access::kOverwrite && IsCurrentBeside(tensor, tier)) {
      residency.Drop(tensor);
    }
    if (parts_.working->IsDirtyInWindow(tensor)) {
      parts_.write_back->OnDirty(tensor);
    }
  }
}

void Admission::EraseAdmitted(Customer& customer, uint64_t group) {
  const auto found = admitted_.find(group);
  if (!customer.closed) parts_.customers->DropWants(found->second.second);
  --customer.admitted;
  customer.coming_pins -= static_cast<int>(found->second.second.wants.size());
  admitted_.erase(found);
  parts_.customers->NoteIfEnded(customer);
}

bool Admission::WriterWaits(const Tensor& tensor) const {
  const auto writes = [&tensor](const Group& group) {
    return std::any_of(
        group.wants.begin(), group.wants.end(), [&tensor](const Want& want) {
          return want.tensor == tensor.id && want.access != Access::kRead;
        });
  };
  for (const Customer* const customer : parts_.customers->active()) {
    for (const auto& [id, group] : customer->waiting) {
      if (writes(group)) return true;
      if (!customer->bytes.has_value()) break;  // its head alone
    }
  }
  return false;
}

void Admission::OnClosed(const Customer& customer) {
  for (const auto& [id, admitted] : admitted_) {
    if (admitted.first == customer.id) {
      parts_.customers->DropWants(admitted.second);
    }
  }
}

void Admission::NoteAhead(const Tensor& tensor) {
  ++counts_.prefetch_reads;
  ahead_.insert(tensor.id.value);
}

void Admission::AddWanted(WantedTensors* wanted) const {
  for (const auto& [id, admitted] : admitted_) {
    const Customer* const customer = parts_.customers->Find(admitted.first);
    if (!customer->closed) wanted->Add(admitted.second.wants);
  }
}

}  // namespace terrace
