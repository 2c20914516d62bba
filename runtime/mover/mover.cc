#include "runtime/mover/mover.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {

Mover::~Mover() { core_.inbox->Shut(); }

absl::Time Mover::RunOnce() {
  core_.heartbeat->Beat();
  if (closed()) return absl::InfiniteFuture();
  PollLinks();
  core_.placement.Measure();
  turn_.processed = core_.inbox->Drain(&turn_.messages);
  HearMessages();
  lost_device_.Serve(&turn_.arrivals);
  HearArrivals();
  const absl::Time now = core_.clock.Now();
  bool more = false;
  if (!core_.closing.begun()) {
    // First: what is lent no group looks for, and what comes back they find.
    more = core_.lent.Serve(now, core_.customers.wanted(), errors_.added());
    errors_.Tell();
    more |= Serve(now);
  }
  core_.Publish(turn_.processed);
  if (core_.closing.begun()) AdvanceClosing(now);
  if (closed()) return absl::InfiniteFuture();

  PollLinks();  // submits what this turn has begun
  const bool heard = !turn_.arrivals.empty();
  HearArrivals();
  if (more || heard || !turn_.moved.empty() ||
      core_.inbox->posted() != turn_.processed) {
    return core_.clock.Now();
  }
  const absl::Time next =
      std::min(core_.links.NextEvent(), core_.NextDeadline());
  return core_.closing.begun() ? std::min(next, core_.closing.NextDeadline())
                               : next;
}

absl::Time Mover::RunRequests() {
  const absl::Time now = core_.clock.Now();
  if (core_.closing.begun()) return now;
  const std::optional<uint64_t> last =
      core_.inbox->DrainRequests(&turn_.messages);
  if (!last.has_value()) return now;
  turn_.processed = *last;
  core_.heartbeat->SetAnothers(true);
  HearMessages();
  const bool more = Serve(now);
  core_.heartbeat->SetAnothers(false);
  core_.Publish(turn_.processed);
  const bool is_due = more || core_.links.needs_poll() ||
                      core_.transfers.has_waiting() || core_.lent.is_asked();
  return is_due ? now : core_.NextDeadline();
}

void Mover::PollLinks() {
  turn_.moved.clear();
  core_.transfers.StartWaiting(&turn_.arrivals);
  core_.links.Poll(&turn_.moved);
  for (const Moved& moved : turn_.moved) {
    core_.placement.OnMoved(core_.transfers.OnMoved(moved, &turn_.arrivals));
  }
}

void Mover::HearMessages() {
  for (Message& message : turn_.messages) {
    core_.heartbeat->Beat();
    std::visit([this](auto& each) { Hear(each); }, message);
  }
  turn_.messages.clear();
  core_.inbox->NoteHeard(turn_.processed);
}

bool Mover::Serve(absl::Time now) {
  // First: a window that opens may wait for the room.
  for (TierResidency* const each : core_.working.all()) {
    each->CloseEmptyWindows();
  }
  core_.others.staging.Sweep();
  core_.registrar.ServeEnds(core_.customers.wanted(), turn_.processed);
  core_.registrar.CheckGrowth(now, errors_.added());
  errors_.Tell();
  core_.registrar.ServeRegistrations();
  core_.opener.Serve(
      now, [this] { return core_.report().HoldersOfRoom(); }, errors_.added());
  errors_.Tell();
  for (Customer* const customer : core_.customers.active()) {
    if (customer->bytes.has_value()) continue;
    core_.admission.Admit(*customer, now, errors_.added());
    errors_.Tell();
    if (!core_.admission.HasExpired(*customer, now)) continue;
    core_.admission.Expire(*customer, now, core_.report().HoldersOfRoom());
    core_.admission.Admit(*customer, now, errors_.added());
    errors_.Tell();
  }
  core_.byte_admission.Serve(
      now, [this] { return core_.report().HoldersOfRoom(); }, errors_.added());
  errors_.Tell();
  const bool evicts =
      core_.evictions.Serve(now, core_.customers.wanted(), errors_.added());
  errors_.Tell();
  const size_t failed = core_.write_back.failed();
  core_.write_back.Start(errors_.added());
  errors_.Tell();
  const bool gave_up = core_.write_back.failed() != failed;
  // A write-back that failed at once, or a copy that was dropped, may have
  // changed what a head waits for.
  core_.read_ahead.Propose(core_.byte_admission.lacking(), errors_.added());
  errors_.Tell();
  core_.byte_admission.PassRecalls();
  core_.prefetcher.ServeHints();
  for (const Customer* const customer : core_.customers.active()) {
    if (!customer->bytes.has_value()) core_.prefetcher.Watch(customer->id);
  }
  for (TierResidency* const each : core_.working.all()) {
    for (const int64_t queue : each->windows().TakeLosers()) {
      core_.prefetcher.Watch(queue);
    }
  }
  core_.prefetcher.Propose(core_.customers);
  return gave_up || evicts || core_.write_back.has_new_lowering();
}

void Mover::AdvanceClosing(absl::Time now) {
  if (!core_.closing.Advance(now, turn_.processed, core_.report().Holders()))
    return;
  core_.closing.End(!core_.pins.empty(),
                    core_.report().MakeStats(errors_.first()));
}

void Mover::HearArrivals() {
  for (Arrival& arrival : turn_.arrivals) {
    // Before who waits for it has it.
    if (!arrival.passed.empty()) {
      core_.working.KeepPassed(*arrival.tensor, std::move(arrival.passed));
    }
    Hear(arrival);
  }
  turn_.arrivals.clear();
}

void Mover::Hear(const Arrival& arrival) {
  Tensor& tensor = *arrival.tensor;
  core_.working.OnUsed(tensor);
  const bool came_down = IsWorkingTier(arrival.edge.from) &&
                         IsWorkingTier(arrival.edge.to) &&
                         KeepsBefore(arrival.edge.to, arrival.edge.from);
  switch (arrival.kind) {
    case Arrival::Kind::kWhole:
      if (came_down) core_.write_back.OnCameDown(arrival);
      if (IsMemory(arrival.edge.to)) core_.read_ahead.OnCame();
      return core_.admission.OnWhole(arrival);
    case Arrival::Kind::kWritten:
      return core_.write_back.OnWritten(arrival);
    case Arrival::Kind::kWriteFailed:
      core_.write_back.OnWriteFailed(arrival, core_.table.IsAdmitted(tensor),
                                     errors_.added());
      return errors_.Tell();
    case Arrival::Kind::kLost:
      if (core_.table.IsAdmitted(tensor)) {
        OnFetchGone(arrival);
        return Lose(tensor, arrival.status);
      }
      break;
    case Arrival::Kind::kFillFailed:
      break;
  }
  // A fetch ahead that failed is no customer's error: a request fetches again.
  if (core_.admission.HasWaiters(tensor)) {
    core_.admission.ForgetAheadFailed(tensor);
    errors_.added()->push_back({tensor.customer, arrival.status});
    errors_.Tell();
  } else {
    core_.admission.NoteAheadFailed(tensor);
  }
  OnFetchGone(arrival);
  if (came_down) {
    core_.write_back.OnComeDownFailed(arrival, core_.table.IsAdmitted(tensor),
                                      errors_.added());
    errors_.Tell();
  }
  core_.admission.OnFetchFailed(tensor, arrival.status);
  // The copy that a writer on the other tier was fetching, whose hold has ended
  // with its fetch.
  if (core_.working.IsDirtyInWindow(tensor)) core_.write_back.OnDirty(tensor);
}

// There is no copy where it was to go, and perhaps none where it came from.
void Mover::OnFetchGone(const Arrival& arrival) {
  Tensor& tensor = *arrival.tensor;
  absl::Status late;
  if (arrival.late_room != nullptr) {
    late = core_.transfers.LateFetch(*arrival.late_room);
  }
  if (IsWorkingTier(arrival.edge.to) && tensor.at(arrival.edge.to) == nullptr) {
    core_.working.at(arrival.edge.to)
        .OnGone(tensor, arrival.late_room, std::move(late));
  }
  const TierId from = arrival.edge.from;
  if (arrival.source_is_gone && IsWorkingTier(from) && tensor.Idle(from)) {
    core_.working.at(from).Drop(tensor);
  }
}

// Its copies are gone already.
void Mover::Lose(Tensor& tensor, const absl::Status& why) {
  tensor.Lose(why);
  errors_.added()->push_back({tensor.customer, why});
  errors_.Tell();
  core_.admission.OnFetchFailed(tensor, why);
}

}  // namespace terrace
