#include "runtime/motion/transfers.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "runtime/motion/seal.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// What the room that a late move has is waited for.
absl::Status LateStatus(const TransferParts& parts,
                        const TensorTransfer& transfer) {
  const Edge leg = transfer.leg();
  const bool reads = IsFromFar(leg);
  const TierId far = FarEnd(leg);
  std::string at = parts.tiers->at(far).name();
  if (!IsWorkingTier(far)) {
    absl::StrAppend(&at, ", offset ", transfer.below.offset);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "a slot is quarantined: a ", reads ? "read" : "write", " of ", at, ", ",
      ResidentBytes(transfer.tensor->spec.size_bytes),
      " bytes, is past its deadline and still under way"));
}

void CancelOne(std::pair<const uint64_t, TensorTransfer>& transfer,
               Links& links) {
  auto& [tag, moves] = transfer;
  moves.cancelled = true;
  if (moves.moving) links.Cancel(moves.leg(), tag);
}

// A transcript's name for a tier.
int NumberOf(const TransferParts& parts, TierId tier) {
  if (IsDevice(tier)) return -1;
  return IsMemory(tier) ? 0 : 1 + parts.resting->IndexOf(tier);
}

void Note(const TransferParts& parts, TranscriptEvent event,
          const TensorTransfer& transfer, absl::StatusCode code) {
  if (parts.transcript == nullptr) return;
  TranscriptLine line;
  line.at = parts.clock->Now();
  line.event = event;
  line.code = code;
  line.tensor = transfer.tensor->id.value;
  line.from = NumberOf(parts, transfer.leg().from);
  line.to = NumberOf(parts, transfer.leg().to);
  line.io_class = static_cast<int>(transfer.io_class);
  line.generation = transfer.generation;
  parts.transcript->push_back(line);
}

}  // namespace

const TensorTransfer& Transfers::Of(const Tensor& tensor) const {
  const auto found = transfers_.find(tensor.transfer());
  TERRACE_CHECK(found != transfers_.end() && found->second.tensor == &tensor);
  return found->second;
}

Transfers::Map::iterator Transfers::Renumber(Map::iterator transfer) {
  auto node = transfers_.extract(transfer);
  node.key() = next_tag_++;
  return transfers_.insert(transfers_.end(), std::move(node));
}

void Transfers::Move(Map::value_type& transfer) {
  auto& [tag, moves] = transfer;
  moves.moving = true;
  Note(parts_, TranscriptEvent::kMoveStarted, moves, absl::StatusCode::kOk);
  const Edge leg = moves.leg();
  const Extent& from = moves.on(leg.from);
  const Extent& to = moves.on(leg.to);
  parts_.links->Begin(
      {.tag = tag,
       .edge = leg,
       .from = from,
       .to = to,
       .data =
           parts_.tiers->at(NearEnd(leg)).Address(IsFromFar(leg) ? to : from),
       .io_class = moves.io_class,
       .timeout = parts_.timeout});
}

void Transfers::StartDrain(Tensor& tensor, TierId to, Reservation second,
                           Reservation slot) {
  const uint64_t tag = next_tag_++;
  const auto added = transfers_.try_emplace(transfers_.end(), tag);
  TensorTransfer& transfer = added->second;
  transfer.tensor = &tensor;
  transfer.edge = {tensor.KeptAt(), to};
  transfer.io_class = IoClass::kWriteBack;
  transfer.generation = tensor.generation();
  transfer.below =
      second.empty() ? tensor.resting()->place.extent() : second.extent();
  transfer.room = std::move(second);
  transfer.staging = std::move(slot);
  tensor.BeginDrain(tag, transfer.edge.from);
  if (transfer.has_two_legs()) {
    Move(*added);
  } else {
    Seal(*added);
  }
}

void Transfers::Seal(const Map::value_type& transfer) {
  const auto& [tag, drain] = transfer;
  ++tasks_;
  const std::optional<uint64_t> seal_id =
      parts_.resting->at(drain.edge.to).seal_id();
  if (!seal_id.has_value()) {
    parts_.inbox->Post(Sealed{tag});
    return;
  }
  const ExtentHeader header =
      HeaderOf(*drain.tensor, *seal_id, drain.below, drain.generation);
  parts_.executor->Run([copy = drain.bytes(*parts_.tiers), header,
                        inbox = parts_.inbox, tag = tag] {
    terrace::Seal(header, copy);
    inbox->Post(Sealed{tag});
  });
}

Tensor& Transfers::OnSealed(const Sealed& event) {
  --tasks_;
  return *transfers_.at(event.transfer).tensor;
}

void Transfers::StartMove(Tensor& tensor, int64_t failures) {
  const auto transfer = Renumber(transfers_.find(tensor.transfer()));
  transfer->second.failures = failures;
  transfer->second.is_second = true;
  tensor.BeginMove(transfer->second.room.empty(), transfer->first);
  Move(*transfer);
}

TierId Transfers::GiveUp(Tensor& tensor) {
  const auto found = transfers_.find(tensor.transfer());
  const TierId to = found->second.edge.to;
  transfers_.erase(found);
  tensor.EndDrain(/*late=*/false);
  return to;
}

MoveReport Transfers::OnMoved(const Moved& moved,
                              std::vector<Arrival>* arrivals) {
  const auto found = transfers_.find(moved.tag);
  TERRACE_CHECK(found != transfers_.end());
  TensorTransfer& transfer = found->second;
  Note(parts_,
       moved.released ? TranscriptEvent::kMoveReleased
                      : TranscriptEvent::kMoveEnded,
       transfer, moved.status.code());
  MoveReport report = {.edge = transfer.leg(),
                       .status = moved.status,
                       .failures = transfer.failures,
                       .late = moved.late,
                       .released = moved.released};
  // What disks and mapped tiers move they count themselves, all memories
  // together.
  const bool counts =
      !IsRestingTier(FarEnd(report.edge)) || NearEnd(report.edge) != kDramTier;
  if (moved.status.ok() && counts) {
    parts_.links->AddMoved(report.edge,
                           ResidentBytes(transfer.tensor->spec.size_bytes));
  }
  if ((moved.late || moved.released) && IsOfDevice(report.edge)) {
    const int64_t bytes = ResidentBytes(transfer.tensor->spec.size_bytes);
    parts_.links->AddQuarantined(moved.late ? bytes : -bytes);
  }
  if (moved.late && !transfer.staging.empty()) {
    parts_.staging->SetLate(transfer.staging, LateStatus(parts_, transfer));
  }
  if (transfer.fills()) {
    OnFilled(found, moved, arrivals);
    return report;
  }
  const bool ends = !moved.status.ok() || moved.released;
  if (transfer.in_first_leg() && ends && !moved.late) {
    report.given_up = transfer.edge.to;
  }
  OnDrained(found, moved, arrivals);
  return report;
}

void Transfers::OnDrained(Map::iterator transfer, const Moved& moved,
                          std::vector<Arrival>* arrivals) {
  TensorTransfer& drain = transfer->second;
  Tensor& tensor = *drain.tensor;
  Arrival arrival{.kind = Arrival::Kind::kWritten,
                  .tensor = &tensor,
                  .edge = drain.edge,
                  .status = moved.status,
                  .late = moved.late};
  if (drain.in_first_leg()) {
    if (moved.status.ok() && !moved.released) {
      drain.moving = false;
      return Seal(*transfer);
    }
    arrival.source_is_gone = absl::IsDataLoss(moved.status);
    arrival.kind = arrival.source_is_gone ? Arrival::Kind::kLost
                                          : Arrival::Kind::kWriteFailed;
    arrival.edge = drain.leg();
    if (moved.released) arrival.status = absl::CancelledError("it came late");
    tensor.EndDrain(moved.late);
  } else if (moved.status.ok()) {
    arrival.moved = !drain.room.empty();
    tensor.Drained(std::move(drain.room), drain.generation);
  } else {
    arrival.kind = Arrival::Kind::kWriteFailed;
    tensor.EndDrain(moved.late);
  }
  if (!moved.late) transfers_.erase(transfer);
  arrivals->push_back(std::move(arrival));
}

void Transfers::Promote(const Tensor& tensor, IoClass io_class) {
  TensorTransfer& transfer = transfers_.at(tensor.transfer());
  if (transfer.moving) {
    parts_.links->Promote(transfer.leg(), tensor.transfer(), io_class);
  }
  if (transfer.has_two_legs()) {
    transfer.io_class = std::min(transfer.io_class, io_class);
  }
}

void Transfers::Cancel(const Tensor& tensor) {
  CancelOne(*transfers_.find(tensor.transfer()), *parts_.links);
}

void Transfers::CancelAll() {
  for (auto& transfer : transfers_) CancelOne(transfer, *parts_.links);
}

bool Transfers::Has(const Tensor& tensor) const {
  return tensor.drain() != Drain::kNone || tensor.ArrivingAt() != kNoTier ||
         late_fills_.contains(&tensor);
}

TierId Transfers::DrainTier(const Tensor& tensor) const {
  return tensor.drain() == Drain::kNone ? kNoTier : Of(tensor).edge.to;
}

absl::Status Transfers::LateFetch(const Reservation& room) const {
  for (const auto& [tag, transfer] : transfers_) {
    if (&transfer.room == &room) return LateStatus(parts_, transfer);
  }
  return absl::OkStatus();
}

int64_t Transfers::second_bytes(TierId tier) const {
  int64_t bytes = 0;
  for (const auto& [tag, transfer] : transfers_) {
    if (tier == kDramTier) {
      if (transfer.staging.from() != &parts_.tiers->at(tier)) continue;
      bytes += transfer.staging.extent().size_bytes;
    } else if (transfer.room.tier() == tier) {
      bytes += transfer.below.size_bytes;
    }
  }
  return bytes;
}

}  // namespace terrace
