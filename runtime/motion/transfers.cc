#include "runtime/motion/transfers.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/motion/seal.h"

namespace terrace {
namespace {

// A fetch whose bytes are wrong is read once more: what was flipped on the
// way is then whole, what is wrong on the disk is not.
constexpr int kFetchesAgain = 1;

}  // namespace

absl::Span<std::byte> Transfers::BytesOf(const Tensor& tensor) const {
  const Extent& extent = tensor.at(kDramTier)->place.extent();
  return {parts_.dram->Address(extent), static_cast<size_t>(extent.size_bytes)};
}

const Transfers::Transfer& Transfers::Of(const Tensor& tensor) const {
  const auto found = transfers_.find(tensor.transfer());
  TERRACE_CHECK(found != transfers_.end() && found->second.tensor == &tensor);
  return found->second;
}

Transfers::Map::iterator Transfers::Renumber(Map::iterator transfer) {
  auto node = transfers_.extract(transfer);
  node.key() = next_tag_++;
  return transfers_.insert(transfers_.end(), std::move(node));
}

void Transfers::Move(const Map::value_type& transfer) {
  const auto& [tag, moves] = transfer;
  Note(TranscriptEvent::kMoveStarted, moves, absl::StatusCode::kOk);
  const Extent& here = moves.tensor->at(kDramTier)->place.extent();
  const bool reads = moves.edge.to == kDramTier;
  parts_.links->Begin({.tag = tag,
                       .edge = moves.edge,
                       .from = reads ? moves.below : here,
                       .to = reads ? here : moves.below,
                       .data = parts_.dram->Address(here),
                       .io_class = moves.io_class,
                       .timeout = parts_.timeout});
}

void Transfers::StartFill(Tensor& tensor, Reservation room, IoClass io_class) {
  const Copy* const below = tensor.resting();
  TERRACE_CHECK(below != nullptr);
  const uint64_t tag = next_tag_++;
  Transfer& transfer = transfers_.try_emplace(transfers_.end(), tag)->second;
  transfer.tensor = &tensor;
  transfer.edge = {below->place.tier(), kDramTier};
  transfer.io_class = io_class;
  transfer.moving = true;
  transfer.generation = below->generation;
  transfer.below = below->place.extent();
  tensor.BeginFill(kDramTier, std::move(room), tag);
  Move(*transfers_.find(tag));
}

void Transfers::StartCheck(Map::iterator transfer, uint64_t seal_id) {
  Transfer& checked = transfer->second;
  checked.moving = false;
  ++tasks_;
  const Tensor& tensor = *checked.tensor;
  const ExtentHeader expected =
      HeaderOf(tensor, seal_id, checked.below, checked.generation);
  parts_.executor->Run([copy = BytesOf(tensor), expected, inbox = parts_.inbox,
                        tag = transfer->first] {
    inbox->Post(Checked{tag, CheckSeal(copy, expected)});
  });
}

void Transfers::StartDrain(Tensor& tensor, TierId to, Reservation second) {
  const uint64_t tag = next_tag_++;
  Transfer& transfer = transfers_.try_emplace(transfers_.end(), tag)->second;
  transfer.tensor = &tensor;
  transfer.edge = {kDramTier, to};
  transfer.io_class = IoClass::kWriteBack;
  transfer.generation = tensor.generation();
  transfer.below =
      second.empty() ? tensor.resting()->place.extent() : second.extent();
  transfer.room = std::move(second);
  tensor.BeginDrain(tag);
  ++tasks_;
  const std::optional<uint64_t> seal_id = parts_.resting->at(to).seal_id();
  if (!seal_id.has_value()) {
    parts_.inbox->Post(Sealed{tag});
    return;
  }
  const ExtentHeader header =
      HeaderOf(tensor, *seal_id, transfer.below, transfer.generation);
  parts_.executor->Run(
      [copy = BytesOf(tensor), header, inbox = parts_.inbox, tag] {
        Seal(header, copy);
        inbox->Post(Sealed{tag});
      });
}

Tensor& Transfers::OnSealed(const Sealed& event) {
  --tasks_;
  return *transfers_.at(event.transfer).tensor;
}

void Transfers::StartMove(Tensor& tensor, int64_t failures) {
  const auto transfer = Renumber(transfers_.find(tensor.transfer()));
  transfer->second.moving = true;
  transfer->second.failures = failures;
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
  const Transfer& transfer = found->second;
  Note(moved.released ? TranscriptEvent::kMoveReleased
                      : TranscriptEvent::kMoveEnded,
       transfer, moved.status.code());
  const MoveReport report = {.edge = transfer.edge,
                             .status = moved.status,
                             .failures = transfer.failures,
                             .late = moved.late,
                             .released = moved.released};
  if (transfer.edge.to == kDramTier) {
    OnFilled(found, moved, arrivals);
  } else {
    OnDrained(found, moved, arrivals);
  }
  return report;
}

void Transfers::OnFilled(Map::iterator transfer, const Moved& moved,
                         std::vector<Arrival>* arrivals) {
  Transfer& fill = transfer->second;
  Tensor& tensor = *fill.tensor;
  if (moved.released) {
    const auto late = late_fills_.find(&tensor);
    if (--late->second == 0) late_fills_.erase(late);
    if (fill.room.from() == parts_.dram) {
      late_bytes_ -= fill.room.extent().size_bytes;
    }
    transfers_.erase(transfer);
    return;
  }
  if (moved.status.ok()) {
    tensor.Filled(kDramTier);
    const std::optional<uint64_t> seal_id =
        parts_.resting->at(fill.edge.from).seal_id();
    if (seal_id.has_value()) return StartCheck(transfer, *seal_id);
    EndFill(transfer, arrivals);
    return;
  }
  Arrival arrival{.kind = Arrival::Kind::kFillFailed,
                  .tensor = &tensor,
                  .edge = fill.edge,
                  .status = moved.status,
                  .late = moved.late};
  if (absl::IsDataLoss(moved.status)) {
    arrival.kind = Arrival::Kind::kLost;
    arrival.status = Reworded(
        moved.status, absl::StrCat("tensor '", tensor.spec.name, "': ",
                                   absl::string_view(moved.status.message())));
  }
  arrivals->push_back(std::move(arrival));
  Reservation room = tensor.FillFailed(kDramTier);
  if (!moved.late) {
    transfers_.erase(transfer);
    return;
  }
  ++late_fills_[&tensor];
  if (room.from() == parts_.dram) late_bytes_ += room.extent().size_bytes;
  fill.room = std::move(room);
  arrivals->back().late_room = &fill.room;
}

void Transfers::EndFill(Map::iterator transfer,
                        std::vector<Arrival>* arrivals) {
  Tensor& tensor = *transfer->second.tensor;
  tensor.Checked(kDramTier);
  arrivals->push_back({.tensor = &tensor, .edge = transfer->second.edge});
  transfers_.erase(transfer);
}

void Transfers::OnDrained(Map::iterator transfer, const Moved& moved,
                          std::vector<Arrival>* arrivals) {
  Transfer& drain = transfer->second;
  Tensor& tensor = *drain.tensor;
  Arrival arrival{.kind = Arrival::Kind::kWritten,
                  .tensor = &tensor,
                  .edge = drain.edge,
                  .status = moved.status,
                  .late = moved.late};
  if (moved.status.ok()) {
    arrival.moved = !drain.room.empty();
    tensor.Drained(std::move(drain.room), drain.generation);
  } else {
    arrival.kind = Arrival::Kind::kWriteFailed;
    tensor.EndDrain(moved.late);
  }
  if (!moved.late) transfers_.erase(transfer);
  arrivals->push_back(std::move(arrival));
}

void Transfers::OnChecked(const Checked& event, bool again, bool matters,
                          std::vector<Arrival>* arrivals) {
  --tasks_;
  const auto found = transfers_.find(event.transfer);
  TERRACE_CHECK(found != transfers_.end());
  Transfer& fill = found->second;
  Tensor& tensor = *fill.tensor;
  if (event.status.ok() || !matters) return EndFill(found, arrivals);
  if (fill.bad_checks++ < kFetchesAgain && again) {
    const auto transfer = Renumber(found);
    transfer->second.moving = true;
    transfer->second.io_class = IoClass::kDemand;
    tensor.BeginFill(kDramTier, {}, transfer->first);
    Move(*transfer);
    return;
  }
  const std::string& path = parts_.resting->name(fill.edge.from);
  const absl::Status loss = absl::DataLossError(
      absl::StrCat("tensor '", tensor.spec.name, "': ", path, ", offset ",
                   fill.below.offset, ", ", fill.below.size_bytes,
                   " bytes: ", absl::string_view(event.status.message())));
  arrivals->push_back({.kind = Arrival::Kind::kLost,
                       .tensor = &tensor,
                       .edge = fill.edge,
                       .status = WithIoFault(
                           loss, {.path = path, .offset = fill.below.offset})});
  tensor.FillFailed(kDramTier);
  transfers_.erase(found);
}

void Transfers::Promote(const Tensor& tensor, IoClass io_class) {
  parts_.links->Promote(Of(tensor).edge, tensor.transfer(), io_class);
}

void Transfers::Cancel(const Tensor& tensor) {
  parts_.links->Cancel(Of(tensor).edge, tensor.transfer());
}

void Transfers::CancelAll() {
  for (const auto& [tag, transfer] : transfers_) {
    if (transfer.moving) parts_.links->Cancel(transfer.edge, tag);
  }
}

bool Transfers::Has(const Tensor& tensor) const {
  return tensor.drain() != Drain::kNone || tensor.Arriving(kDramTier) ||
         late_fills_.contains(&tensor);
}

TierId Transfers::DrainTier(const Tensor& tensor) const {
  return tensor.drain() == Drain::kNone ? kNoTier : Of(tensor).edge.to;
}

Extent Transfers::DrainPlace(const Tensor& tensor) const {
  return Of(tensor).below;
}

absl::Status Transfers::LateFetch(TierId from, const Reservation& room) const {
  for (const auto& [tag, transfer] : transfers_) {
    if (&transfer.room != &room) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "a slot is quarantined: a read of ", parts_.resting->name(from),
        ", offset ", transfer.below.offset, ", ", room.extent().size_bytes,
        " bytes, is past its deadline and still under way"));
  }
  return absl::OkStatus();
}

int64_t Transfers::second_bytes(TierId tier) const {
  int64_t bytes = 0;
  for (const auto& [tag, transfer] : transfers_) {
    if (transfer.room.tier() == tier) bytes += transfer.below.size_bytes;
  }
  return bytes;
}

void Transfers::Note(TranscriptEvent event, const Transfer& transfer,
                     absl::StatusCode code) const {
  if (parts_.transcript == nullptr) return;
  TranscriptLine line;
  line.at = parts_.clock->Now();
  line.event = event;
  line.code = code;
  line.tensor = transfer.tensor->id.value;
  line.from = transfer.edge.from;
  line.to = transfer.edge.to;
  line.io_class = static_cast<int>(transfer.io_class);
  line.generation = transfer.generation;
  parts_.transcript->push_back(line);
}

}  // namespace terrace
