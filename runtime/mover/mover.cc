#include "runtime/mover/mover.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

RestingTiers MakeRestingTiers(MoverParts& parts,
                              const std::shared_ptr<Inbox>& inbox) {
  TERRACE_CHECK(parts.background.size() == parts.disks.size());
  std::vector<std::unique_ptr<DiskTier>> tiers;
  for (size_t i = 0; i < parts.disks.size(); ++i) {
    DiskTierParts disk;
    disk.id = RestingTiers::first() + static_cast<int>(i);
    disk.file = std::move(parts.disks[i]);
    disk.background = parts.background[i];
    disk.events = inbox;
    disk.clock = parts.clock;
    disk.patience = parts.io_timeout;
    tiers.push_back(std::make_unique<DiskTier>(std::move(disk)));
  }
  return RestingTiers(std::move(tiers));
}

}  // namespace

Mover::Mover(MoverParts parts)
    : clock_(*parts.clock),
      inbox_(std::make_shared<Inbox>([io = parts.io.get()] { io->Wake(); })),
      dram_(parts.arena),
      links_(std::move(parts.io), 1 + static_cast<int>(parts.disks.size())),
      resting_(MakeRestingTiers(parts, inbox_)),
      residency_({.tier = &dram_,
                  .table = &table_,
                  .pins = &pins_,
                  .planner = &planner_,
                  .eviction = std::move(parts.eviction)}),
      transfers_({.links = &links_,
                  .executor = parts.executor,
                  .inbox = inbox_,
                  .dram = &dram_,
                  .resting = &resting_,
                  .clock = parts.clock,
                  .transcript = parts.transcript,
                  .timeout = parts.io_timeout}),
      placement_(resting_, links_, parts.priors),
      write_back_({.residency = &residency_,
                   .transfers = &transfers_,
                   .placement = &placement_,
                   .resting = &resting_}),
      registrar_({.table = &table_,
                  .resting = &resting_,
                  .placement = &placement_,
                  .transfers = &transfers_,
                  .residency = &residency_,
                  .write_back = &write_back_,
                  .pins = &pins_}),
      customers_(*parts.clock, parts.transcript),
      admission_({.customers = &customers_,
                  .table = &table_,
                  .pins = &pins_,
                  .planner = &planner_,
                  .residency = &residency_,
                  .transfers = &transfers_,
                  .write_back = &write_back_,
                  .resting = &resting_,
                  .clock = parts.clock,
                  .inbox = inbox_}),
      prefetcher_({.table = &table_,
                   .planner = &planner_,
                   .residency = &residency_,
                   .transfers = &transfers_,
                   .admission = &admission_,
                   .enabled = parts.prefetch}),
      opener_({.customers = &customers_,
               .planner = &planner_,
               .residency = &residency_,
               .write_back = &write_back_,
               .transfers = &transfers_}),
      closing_({.links = &links_,
                .transfers = &transfers_,
                .resting = &resting_,
                .dram = &dram_,
                .inbox = inbox_.get()}) {}

Mover::~Mover() { inbox_->Shut(); }

absl::Time Mover::RunOnce() {
  if (closed()) return absl::InfiniteFuture();
  PollLinks();
  placement_.Measure();
  HearMessages();
  HearArrivals();
  const absl::Time now = clock_.Now();
  const bool more = !closing_.begun() && Serve(now);
  for (const int64_t queue : customers_.Publish(turn_.processed)) {
    planner_.Close(queue);
  }
  if (closing_.begun()) AdvanceClosing(now);
  if (closed()) return absl::InfiniteFuture();

  PollLinks();  // submits what this turn has begun
  HearArrivals();
  if (more || !turn_.moved.empty() || inbox_->posted() != turn_.processed) {
    return clock_.Now();
  }
  absl::Time next = std::min({links_.NextEvent(), customers_.NextDeadline(),
                              opener_.NextDeadline(), closing_.NextDeadline()});
  if (!closing_.begun()) next = std::min(next, resting_.NextEvent());
  return next;
}

void Mover::PollLinks() {
  turn_.moved.clear();
  links_.Poll(&turn_.moved);
  for (const Moved& moved : turn_.moved) {
    placement_.OnMoved(transfers_.OnMoved(moved, &turn_.arrivals));
  }
}

void Mover::HearMessages() {
  turn_.processed = inbox_->Drain(&turn_.messages);
  for (Message& message : turn_.messages) {
    std::visit([this](auto& each) { Hear(each); }, message);
  }
  turn_.messages.clear();
}

bool Mover::Serve(absl::Time now) {
  // First: a window that opens may wait for the room.
  residency_.CloseEmptyWindows();
  registrar_.ServeEnds(customers_.wanted(), turn_.processed);
  registrar_.CheckGrowth(now, &turn_.errors);
  HearErrors();
  registrar_.ServeRegistrations();
  opener_.Serve(
      now, [this] { return report().Holders(); }, &turn_.errors);
  HearErrors();
  for (Customer* const customer : customers_.open()) {
    admission_.Admit(*customer, now, &turn_.errors);
    HearErrors();
    if (!admission_.HasExpired(*customer, now)) continue;
    admission_.Expire(*customer, now, report().Holders());
    admission_.Admit(*customer, now, &turn_.errors);
    HearErrors();
  }
  const size_t failed = write_back_.failed();
  write_back_.Start(&turn_.errors);
  HearErrors();
  const bool gave_up = write_back_.failed() != failed;
  // A write-back that failed at once, or a copy that was dropped, may have
  // changed what a head waits for.
  prefetcher_.ServeHints();
  for (const Customer* const customer : customers_.open()) {
    prefetcher_.Propose(*customer);
  }
  return gave_up;
}

void Mover::AdvanceClosing(absl::Time now) {
  if (!closing_.Advance(now, turn_.processed, report().Holders())) return;
  closing_.End(!pins_.empty(), report().MakeStats(first_error_));
}

void Mover::HearArrivals() {
  for (const Arrival& arrival : std::exchange(turn_.arrivals, {})) {
    Hear(arrival);
  }
}

void Mover::Hear(const Arrival& arrival) {
  Tensor& tensor = *arrival.tensor;
  switch (arrival.kind) {
    case Arrival::Kind::kWhole:
      return admission_.OnWhole(tensor);
    case Arrival::Kind::kWritten:
      return write_back_.OnWritten(arrival);
    case Arrival::Kind::kWriteFailed:
      write_back_.OnWriteFailed(arrival, table_.IsAdmitted(tensor),
                                &turn_.errors);
      return HearErrors();
    case Arrival::Kind::kLost:
      if (table_.IsAdmitted(tensor)) {
        residency_.OnGone(tensor, nullptr, absl::OkStatus());
        return Lose(tensor, arrival.status);
      }
      break;
    case Arrival::Kind::kFillFailed:
      break;
  }
  // A fetch ahead that failed is nobody's error: who asks will fetch again.
  if (admission_.HasWaiters(tensor)) {
    admission_.ForgetAheadFailed(tensor);
    turn_.errors.push_back({tensor.customer, arrival.status});
    HearErrors();
  } else {
    admission_.NoteAheadFailed(tensor);
  }
  absl::Status late;
  if (arrival.late_room != nullptr) {
    late = transfers_.LateFetch(arrival.edge.from, *arrival.late_room);
  }
  residency_.OnGone(tensor, arrival.late_room, std::move(late));
  admission_.OnFetchFailed(tensor, arrival.status);
}

void Mover::HearErrors() {
  for (QueueError& error : std::exchange(turn_.errors, {})) {
    if (error.unwritten != nullptr) {
      const Customer* const customer = customers_.FindOpen(error.queue);
      const bool between_steps = customer != nullptr && !customer->step_open;
      write_back_.SetUnsaid(*error.unwritten, between_steps ? error.queue : -1);
    }
    // What is cancelled by a Close reads and writes a file that goes.
    if (closing_.begun() || absl::IsCancelled(error.status)) continue;
    if (first_error_.ok()) first_error_ = error.status;
    customers_.Report(error.queue, error.status);
  }
}

// Its copies are gone already.
void Mover::Lose(Tensor& tensor, const absl::Status& why) {
  tensor.Lose(why);
  turn_.errors.push_back({tensor.customer, why});
  HearErrors();
  admission_.OnFetchFailed(tensor, why);
}

Report Mover::report() const {
  return Report({.dram = &dram_,
                 .resting = &resting_,
                 .links = &links_,
                 .residency = &residency_,
                 .table = &table_,
                 .pins = &pins_,
                 .transfers = &transfers_,
                 .placement = &placement_,
                 .customers = &customers_,
                 .admission = &admission_});
}

}  // namespace terrace
