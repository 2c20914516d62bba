// Fetches: how they begin, wait for staging, are checked, and end.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "runtime/motion/seal.h"
#include "runtime/motion/transfers.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// A fetch whose bytes are wrong is read once more: what was flipped on the
// way is then whole, what is wrong on the disk is not.
constexpr int kFetchesAgain = 1;

// Whether it is of a working tier itself.
bool IsOutsideWindows(const TransferParts& parts, const Reservation& room) {
  return !room.empty() && room.from() == &parts.tiers->at(room.tier());
}

// DataLoss only of a tensor that has no other copy: of one that has, what is
// gone can be fetched from there.
absl::Status WhatIsGone(const TransferParts& parts, const Tensor& tensor,
                        const absl::Status& why, const Copy* other) {
  const std::string text = absl::StrCat(
      "tensor '", tensor.spec.name, "': ", absl::string_view(why.message()));
  if (other == nullptr) return Reworded(why, text);
  return Reworded(why, absl::StatusCode::kUnavailable,
                  absl::StrCat(text, "; it is whole on ",
                               parts.tiers->at(other->place.tier()).name()));
}

}  // namespace

void Transfers::StartFill(Tensor& tensor, Reservation room, IoClass io_class,
                          Reservation passing) {
  const TierId to = room.tier();
  const Copy* const source = tensor.SourceFor(to);
  TERRACE_CHECK(source != nullptr);
  const uint64_t tag = next_tag_++;
  const auto added = transfers_.try_emplace(transfers_.end(), tag);
  TensorTransfer& transfer = added->second;
  transfer.tensor = &tensor;
  transfer.edge = {source->place.tier(), to};
  transfer.io_class = io_class;
  transfer.generation = source->generation;
  if (IsWorkingTier(transfer.edge.from)) {
    tensor.BeginRead(transfer.edge.from);
  } else {
    transfer.below = source->place.extent();
  }
  tensor.BeginFill(to, std::move(room), tag);
  transfer.passes = !passing.empty();
  transfer.staging = std::move(passing);
  if (transfer.has_two_legs() && !transfer.passes) {
    waiting_.push_back(tag);
  } else {
    Move(*added);
  }
}

void Transfers::StartWaiting(std::vector<Arrival>* arrivals) {
  if (waiting_.empty()) return;
  std::stable_sort(
      waiting_.begin(), waiting_.end(), [this](uint64_t a, uint64_t b) {
        return transfers_.at(a).io_class < transfers_.at(b).io_class;
      });
  for (const uint64_t tag : std::exchange(waiting_, {})) {
    const auto found = transfers_.find(tag);
    TensorTransfer& transfer = found->second;
    const int64_t bytes = ResidentBytes(transfer.tensor->spec.size_bytes);
    Moved none{.tag = tag};
    none.status = transfer.cancelled
                      ? absl::CancelledError("cancelled before it began")
                      : parts_.staging->Hope(StagingRoom::Way::kUp, bytes);
    if (!none.status.ok()) {
      FailFill(found, none, arrivals);
      continue;
    }
    transfer.staging = parts_.staging->Take(StagingRoom::Way::kUp, bytes);
    if (transfer.staging.empty()) {
      waiting_.push_back(tag);
    } else {
      Move(*found);
    }
  }
}

void Transfers::StartCheck(Map::iterator transfer, uint64_t seal_id) {
  TensorTransfer& checked = transfer->second;
  checked.moving = false;
  ++tasks_;
  const ExtentHeader expected =
      HeaderOf(*checked.tensor, seal_id, checked.below, checked.generation);
  parts_.executor->Run([copy = checked.bytes(*parts_.tiers), expected,
                        inbox = parts_.inbox, tag = transfer->first] {
    inbox->Post(Checked{tag, CheckSeal(copy, expected)});
  });
}

void Transfers::OnFilled(Map::iterator transfer, const Moved& moved,
                         std::vector<Arrival>* arrivals) {
  TensorTransfer& fill = transfer->second;
  Tensor& tensor = *fill.tensor;
  if (moved.released) {
    const auto late = late_fills_.find(&tensor);
    if (--late->second == 0) late_fills_.erase(late);
    if (IsOutsideWindows(parts_, fill.room)) {
      late_bytes_[fill.room.tier()] -= fill.room.extent().size_bytes;
    }
    if (IsWorkingTier(fill.edge.from)) tensor.EndRead(fill.edge.from);
    transfers_.erase(transfer);
    return;
  }
  if (!moved.status.ok()) return FailFill(transfer, moved, arrivals);
  if (!fill.has_two_legs()) tensor.Filled(fill.edge.to);
  const bool came_up = !fill.is_second && !IsWorkingTier(fill.edge.from);
  if (came_up) {
    const std::optional<uint64_t> seal_id =
        parts_.resting->at(fill.edge.from).seal_id();
    if (seal_id.has_value()) return StartCheck(transfer, *seal_id);
  }
  if (fill.in_first_leg()) return GoOn(transfer, arrivals);
  EndFill(transfer, arrivals);
}

// What is whole in memory goes on to the device.
void Transfers::GoOn(Map::iterator transfer, std::vector<Arrival>* arrivals) {
  if (transfer->second.cancelled) {
    return FailFill(transfer,
                    {.status = absl::CancelledError("cancelled on its way")},
                    arrivals);
  }
  transfer->second.is_second = true;
  Move(*transfer);
}

void Transfers::EndFill(Map::iterator transfer,
                        std::vector<Arrival>* arrivals) {
  TensorTransfer& fill = transfer->second;
  Tensor& tensor = *fill.tensor;
  if (fill.has_two_legs()) tensor.Filled(fill.edge.to);
  tensor.Checked(fill.edge.to);
  if (IsWorkingTier(fill.edge.from)) tensor.EndRead(fill.edge.from);
  arrivals->push_back({.tensor = &tensor, .edge = fill.edge});
  if (fill.passes && IsRestingTier(fill.edge.from)) {
    arrivals->back().passed = std::move(fill.staging);
  }
  transfers_.erase(transfer);
}

void Transfers::FailFill(Map::iterator transfer, const Moved& moved,
                         std::vector<Arrival>* arrivals) {
  TensorTransfer& fill = transfer->second;
  Tensor& tensor = *fill.tensor;
  Arrival arrival{.kind = Arrival::Kind::kFillFailed,
                  .tensor = &tensor,
                  .edge = fill.edge,
                  .status = moved.status,
                  .late = moved.late};
  const bool is_loss = absl::IsDataLoss(moved.status);
  if (is_loss && IsMemory(fill.leg().from)) {
    arrival.status = absl::UnavailableError(moved.status.message());
  } else if (is_loss) {
    arrival.source_is_gone = true;
    const Copy* const other = tensor.SourceFor(fill.edge.from);
    if (other == nullptr) arrival.kind = Arrival::Kind::kLost;
    arrival.status = WhatIsGone(parts_, tensor, moved.status, other);
  }
  arrivals->push_back(std::move(arrival));
  Reservation room = tensor.FillFailed(fill.edge.to);
  if (!moved.late) {
    if (IsWorkingTier(fill.edge.from)) tensor.EndRead(fill.edge.from);
    transfers_.erase(transfer);
    return;
  }
  ++late_fills_[&tensor];
  if (fill.in_first_leg()) return;  // the room is not touched yet
  if (IsOutsideWindows(parts_, room)) {
    late_bytes_[room.tier()] += room.extent().size_bytes;
  }
  fill.room = std::move(room);
  arrivals->back().late_room = &fill.room;
}

void Transfers::OnChecked(const Checked& event, bool again, bool matters,
                          std::vector<Arrival>* arrivals) {
  --tasks_;
  const auto found = transfers_.find(event.transfer);
  TERRACE_CHECK(found != transfers_.end());
  TensorTransfer& fill = found->second;
  Tensor& tensor = *fill.tensor;
  if (event.status.ok() || !matters) {
    fill.cancelled |= !matters;
    return fill.has_two_legs() ? GoOn(found, arrivals)
                               : EndFill(found, arrivals);
  }
  if (fill.bad_checks++ < kFetchesAgain && again) {
    fill.io_class = std::min(fill.io_class, IoClass::kForeseen);
    if (fill.has_two_legs()) return Move(*found);
    const auto transfer = Renumber(found);
    tensor.BeginFill(fill.edge.to, {}, transfer->first);
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
  tensor.FillFailed(fill.edge.to);
  transfers_.erase(found);
}

}  // namespace terrace
