#include "runtime/residency/lent_room.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "runtime/residency/byte_room.h"

namespace terrace {
namespace {

bool Overlap(const Extent& a, const Extent& b) {
  return a.offset < b.end() && b.offset < a.end();
}

}  // namespace

void LentRoom::Begin(const LendRequest& request, uint64_t asker) {
  if (request_.has_value()) End();
  if (parts_.pages == nullptr) {
    parts_.ports->Deliver(
        request.id,
        absl::UnimplementedError("this runtime's memory cannot be lent"));
    return;
  }
  request_ = request;
  asker_ = asker;
  hand_ = 0;
  held_bytes_ = 0;
  seen_held_bytes_ = 0;
  told_bytes_ = bytes_;
}

absl::Status LentRoom::Restore(const Extent& range) {
  Reservation room = parts_.memory->TakeAt(range);
  if (room.empty() || parts_.pages == nullptr || !Unregister(range)) {
    return absl::DataLossError(absl::StrCat(
        range.size_bytes, " bytes that are lent, of the runtime before: they ",
        "are somebody's"));
  }
  room.Reset();
  Take(range, /*is_lent=*/true);
  parts_.pages->Empty(range);
  return absl::OkStatus();
}

bool LentRoom::Unregister(const Extent& range) {
  return parts_.links->UnregisterArena(absl::MakeSpan(
      parts_.memory->Address(range), static_cast<size_t>(range.size_bytes)));
}

bool LentRoom::Serve(absl::Time now, const WantedTensors& wanted,
                     std::vector<QueueError>* errors) {
  if (!request_.has_value()) return false;
  if (bytes_ > request_->bytes) {
    if (ReturnSome()) return true;
    End();
    return true;  // a group may have waited for that room
  }
  const int64_t target = Target();
  // A window that opens comes first.
  const bool holds = parts_.residency->windows().holds_room();
  KeepUnlent(holds ? bytes_ : target);
  const bool is_late = now >= request_->deadline;
  bool has_more = false;
  if (!is_late && !holds && reserved_bytes_ < target) {
    const std::vector<Extent> tail = Tail(target + held_bytes_);
    has_more = !LookAtSome(tail, wanted, errors);
    TakeFree(tail, target);
  }
  has_more |= LendSome();
  if (bytes_ >= target || is_late) {
    End();
  } else if (request_->in_parts && unlent_.empty() && bytes_ > told_bytes_) {
    Tell(/*is_over=*/false);  // somebody waits, perhaps for no more than that
  }
  return has_more && request_.has_value();
}

void LentRoom::KeepUnlent(int64_t most) {
  while (reserved_bytes_ > most && !unlent_.empty()) {
    GiveBack(pieces_.find(unlent_.back()));
    unlent_.pop_back();
  }
}

int64_t LentRoom::Target() const {
  const int64_t free_of_promises = parts_.memory->usage().capacity_bytes -
                                   parts_.residency->windows().open_bytes();
  return std::min(
      request_->bytes,
      std::max(bytes_,
               RoundDown(std::max(int64_t{0}, free_of_promises), kBlockBytes)));
}

std::vector<Extent> LentRoom::Tail(int64_t bytes) const {
  std::vector<Extent> windows = parts_.residency->windows().Rooms();
  absl::c_sort(windows, [](const Extent& a, const Extent& b) {
    return a.offset > b.offset;
  });
  windows.push_back({});  // the memory's beginning
  std::vector<Extent> tail;
  int64_t end = parts_.memory->usage().capacity_bytes;
  for (const Extent& each : windows) {
    const int64_t between = std::min(bytes, end - each.end());
    if (between > 0) tail.push_back({end - between, between});
    bytes -= std::max(int64_t{0}, between);
    end = each.offset;
  }
  return tail;
}

bool LentRoom::LookAtSome(absl::Span<const Extent> tail,
                          const WantedTensors& wanted,
                          std::vector<QueueError>* errors) {
  const auto& residents = parts_.residency->residents().all();
  const size_t end =
      std::min(residents.size(), hand_ + static_cast<size_t>(kTensorsATurn));
  std::vector<Tensor*> there;
  for (; hand_ < end; ++hand_) {
    const ResidentSet::Resident& each = residents[hand_];
    const bool is_there = absl::c_any_of(tail, [&each](const Extent& range) {
      return Overlap(each.room, range);
    });
    if (is_there) there.push_back(each.tensor);
  }
  const bool is_all = hand_ >= residents.size();
  std::vector<Tensor*> start;
  for (Tensor* const each : there) LookAt(*each, wanted, &start);
  if (is_all) {
    hand_ = 0;
    held_bytes_ = std::exchange(seen_held_bytes_, 0);
  }
  parts_.write_back->StartLeaving(&start, errors);
  return is_all;
}

void LentRoom::LookAt(Tensor& tensor, const WantedTensors& wanted,
                      std::vector<Tensor*>* start) {
  TierResidency& residency = *parts_.residency;
  const Copy& copy = *tensor.at(residency.id());
  if (residency.residents().IsLeaving(tensor)) return;
  if (copy.pins > 0) {
    seen_held_bytes_ += copy.place.extent().size_bytes;
    if (!residency.residents().is_ranked()) return;
    ByteRoom(residency, *parts_.byte_pins).AskFor(tensor, asker_);
    return;
  }
  const bool is_dirty = IsNewerThanBelow(tensor, residency.id());
  const bool may_leave =
      !wanted.Contains(tensor.id) && residency.MayLeave(tensor) &&
      !(is_dirty && residency.residents().leaving() >= kMostLeaving);
  if (may_leave && residency.Evict(tensor)) start->push_back(&tensor);
}

void LentRoom::TakeFree(absl::Span<const Extent> tail, int64_t target) {
  for (const Extent& range : tail) {
    while (reserved_bytes_ < target) {
      const std::optional<Extent> free = parts_.memory->LastFreeIn(range);
      if (!free.has_value()) break;
      const int64_t size =
          std::min({free->size_bytes, kPieceBytes, target - reserved_bytes_});
      const Extent piece{free->end() - size, size};
      Take(piece, /*is_lent=*/false);
      unlent_.push_back(piece.offset);
    }
  }
}

void LentRoom::Take(const Extent& range, bool is_lent) {
  reserved_bytes_ += range.size_bytes;
  parts_.memory->SetLent(reserved_bytes_);
  Piece piece{parts_.memory->TakeAt(range), is_lent};
  TERRACE_CHECK(!piece.room.empty());
  pieces_.emplace(range.offset, std::move(piece));
  if (is_lent) bytes_ += range.size_bytes;
}

void LentRoom::GiveBack(Pieces::iterator piece) {
  const int64_t size = piece->second.room.extent().size_bytes;
  reserved_bytes_ -= size;
  if (piece->second.is_lent) bytes_ -= size;
  pieces_.erase(piece);
  parts_.memory->SetLent(reserved_bytes_);
}

bool LentRoom::LendSome() {
  for (int64_t lent = 0; lent < kBytesATurn && !unlent_.empty();) {
    Piece& piece = pieces_.at(unlent_.back());
    const Extent& range = piece.room.extent();
    if (!Unregister(range)) return true;
    if (parts_.keeper != nullptr) parts_.keeper->OnLent(range);
    parts_.pages->Empty(range);
    unlent_.pop_back();
    piece.is_lent = true;
    bytes_ += range.size_bytes;
    lent += range.size_bytes;
  }
  return !unlent_.empty();
}

// The first of it first, so that what is left stays the memory's end.
bool LentRoom::ReturnSome() {
  for (int64_t returned = 0; returned < kBytesATurn;) {
    const int64_t too_many = bytes_ - request_->bytes;
    if (too_many <= 0) return false;
    const auto first = pieces_.begin();
    const Extent range = first->second.room.extent();
    const int64_t size = std::min(range.size_bytes, too_many);
    // The pages of what is left of a piece stay others'.
    if (!parts_.pages->Populate({range.offset, size}).ok()) return false;
    if (parts_.keeper != nullptr) parts_.keeper->OnReturned(range);
    GiveBack(first);
    returned += size;
    if (size == range.size_bytes) continue;
    const Extent rest{range.offset + size, range.size_bytes - size};
    Take(rest, /*is_lent=*/true);
    if (parts_.keeper != nullptr) parts_.keeper->OnLent(rest);
  }
  return bytes_ > request_->bytes;
}

void LentRoom::Tell(bool is_over) {
  const int64_t target = Target();
  told_bytes_ = bytes_;
  parts_.ports->Deliver(
      request_->id,
      Lent{.ticket = request_->ticket,
           .bytes = bytes_,
           .is_over = is_over,
           .promised_bytes = std::max(int64_t{0}, request_->bytes - target),
           .held_bytes = std::max(int64_t{0}, target - bytes_)});
}

void LentRoom::End() {
  KeepUnlent(bytes_);
  Tell(/*is_over=*/true);
  request_.reset();
}

void LentRoom::Refuse(const absl::Status& why) {
  if (!request_.has_value()) return;
  parts_.ports->Deliver(request_->id, why);
  request_.reset();
}

}  // namespace terrace
