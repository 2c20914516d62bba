#include "tiers/copy_queue.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aio/queue/transfer.h"
#include "base/check.h"

namespace terrace {

struct CopyWork : Transfer {
  int side = 0;

  int64_t waiting_pieces() const {
    const int64_t left = request.size_bytes - issued_bytes;
    return (left + piece_bytes - 1) / piece_bytes;
  }
};

absl::Status CopyPiece::Copy() const {
  const auto size = static_cast<size_t>(request.size_bytes);
  if (request.direction == IoDirection::kRead) {
    return medium->Read(request.offset, absl::MakeSpan(request.data, size));
  }
  return medium->Write(request.offset, absl::MakeConstSpan(request.data, size));
}

CopyQueue::CopyQueue(const std::vector<CopyEnd>& ends) {
  for (const CopyEnd& end : ends) {
    TERRACE_CHECK(end.medium != nullptr);
    TERRACE_CHECK(end.tier != kNoTier && end.tier != kDramTier);
    for (const Side& side : sides_) TERRACE_CHECK(side.end.tier != end.tier);
    const Way way = {ClassSchedule(IoQueueOptions().weights), {}};
    sides_.push_back({end, {}, {}, {way, way}});
  }
}

CopyQueue::~CopyQueue() = default;

void CopyQueue::Begin(const Move& move) {
  const int side = SideOf(move.edge);
  const bool reads = IsFromFar(move.edge);
  const Extent& place = reads ? move.from : move.to;
  TERRACE_CHECK(move.from.size_bytes == move.to.size_bytes);
  TERRACE_CHECK(move.data != nullptr && place.size_bytes > 0);
  TERRACE_CHECK(place.offset >= 0 &&
                place.end() <= sides_[side].end.medium->size_bytes());
  auto owned = std::make_unique<CopyWork>();
  CopyWork* const work = owned.get();
  work->side = side;
  work->order = next_order_++;
  work->request.direction = reads ? IoDirection::kRead : IoDirection::kWrite;
  work->request.io_class = move.io_class;
  work->request.data = move.data;
  work->request.offset = place.offset;
  work->request.size_bytes = place.size_bytes;
  work->request.tag = move.tag;
  const bool is_new =
      works_.try_emplace(Key(side, move.tag), std::move(owned)).second;
  TERRACE_CHECK(is_new);  // the tag is unique among moves under way
  work->NextPieceBytes(kPieceBytes);
  waiting_pieces_ += work->waiting_pieces();
  WayOf(*work).schedule.Add(work, kPieceBytes);
}

void CopyQueue::Cancel(Edge edge, uint64_t tag) {
  CopyWork* const work = Find(edge, tag);
  if (work == nullptr || work->all_issued()) return;
  work->cancelled = true;
  Drop(work);
  Settle(work);
}

void CopyQueue::Promote(Edge edge, uint64_t tag, IoClass io_class) {
  CopyWork* const work = Find(edge, tag);
  if (work == nullptr || io_class >= work->request.io_class) return;
  ClassSchedule& schedule = WayOf(*work).schedule;
  const bool waited = schedule.Remove(*work);
  work->request.io_class = io_class;
  if (waited) schedule.Add(work, kPieceBytes);
}

void CopyQueue::DropAll() {
  std::vector<CopyWork*> works;
  for (const auto& [key, work] : works_) works.push_back(work.get());
  for (CopyWork* const work : works) {
    if (work->all_issued()) continue;
    work->cancelled = true;
    Drop(work);
    Settle(work);
  }
  ended_.clear();
}

CopyQueue::Side* CopyQueue::NextSide() {
  Side* next = nullptr;
  for (Side& side : sides_) {
    if (side.empty()) continue;
    if (next == nullptr || side.share < next->share) next = &side;
  }
  return next;
}

CopyQueue::Way& CopyQueue::NextWay(Side& side) {
  auto& [reads, writes] = side.ways;
  if (reads.schedule.empty()) return writes;
  if (writes.schedule.empty()) return reads;
  return writes.share < reads.share ? writes : reads;
}

std::optional<CopyPiece> CopyQueue::Next(absl::Time now) {
  Side* const chosen = NextSide();
  if (chosen == nullptr) return std::nullopt;
  Side& side = *chosen;
  Way& way = NextWay(side);
  auto* const work = static_cast<CopyWork*>(way.schedule.Next(kPieceBytes));
  const int64_t size_bytes = work->NextPieceBytes(kPieceBytes);
  way.schedule.Charge(size_bytes);
  for (Share* const share : {&side.share, &way.share}) {
    ++share->live_pieces;
    share->last_turn = next_turn_;
  }
  ++next_turn_;
  CopyPiece piece;
  piece.work = work;
  piece.medium = side.end.medium;
  piece.request = {work->side,
                   work->request.direction,
                   work->request.data + work->issued_bytes,
                   work->request.offset + work->issued_bytes,
                   size_bytes,
                   work->request.tag};
  work->issued_bytes += size_bytes;
  ++work->live_pieces;
  --waiting_pieces_;
  if (work->all_issued()) way.schedule.Remove(*work);
  side.meter.OnIssue(piece.request, now);
  return piece;
}

void CopyQueue::Landed(const CopyPiece& piece, const absl::Status& status,
                       absl::Time now) {
  CopyWork* const work = piece.work;
  Side& side = sides_[work->side];
  --side.share.live_pieces;
  --WayOf(*work).share.live_pieces;
  side.meter.OnAnswer(piece.request,
                      status.ok() ? piece.request.size_bytes : -1,
                      /*quarantined=*/false, now);
  if (!status.ok()) {
    if (work->first_error.ok()) {
      const bool wrote = piece.request.direction == IoDirection::kWrite;
      work->first_error = wrote && absl::IsDataLoss(status)
                              ? absl::UnavailableError(status.message())
                              : status;
    }
    Drop(work);
  }
  --work->live_pieces;
  Settle(work);
}

void CopyQueue::TakeEnded(std::vector<Moved>* moved) {
  std::move(ended_.begin(), ended_.end(), std::back_inserter(*moved));
  ended_.clear();
}

int64_t CopyQueue::pending() const {
  return static_cast<int64_t>(works_.size() + ended_.size());
}

IoPathStats CopyQueue::stats(TierId tier, absl::Time now) const {
  return sides_[SideOf({kDramTier, tier})].meter.stats(now);
}

int CopyQueue::SideOf(Edge edge) const {
  TERRACE_CHECK(IsMemory(NearEnd(edge)));
  const TierId tier = FarEnd(edge);
  const auto is_its = [tier](const Side& side) {
    return side.end.tier == tier;
  };
  const auto found = std::find_if(sides_.begin(), sides_.end(), is_its);
  TERRACE_CHECK(found != sides_.end());
  return static_cast<int>(found - sides_.begin());
}

CopyQueue::Way& CopyQueue::WayOf(const CopyWork& work) {
  const bool reads = work.request.direction == IoDirection::kRead;
  return sides_[work.side].ways[reads ? 0 : 1];
}

CopyWork* CopyQueue::Find(Edge edge, uint64_t tag) const {
  const auto found = works_.find(Key(SideOf(edge), tag));
  return found == works_.end() ? nullptr : found->second.get();
}

void CopyQueue::Drop(CopyWork* work) {
  if (work->all_issued()) return;
  WayOf(*work).schedule.Remove(*work);
  waiting_pieces_ -= work->waiting_pieces();
  work->issued_bytes = work->request.size_bytes;
}

void CopyQueue::Settle(CopyWork* work) {
  if (work->live_pieces > 0 || !work->all_issued()) return;
  const IoTransfer& request = work->request;
  Moved moved;
  moved.tag = request.tag;
  if (work->cancelled) {
    moved.status = absl::CancelledError(absl::StrCat(
        "cancelled: ", sides_[work->side].end.medium->name(), ", offset ",
        request.offset, ", ", request.size_bytes, " bytes"));
  } else {
    moved.status = work->first_error;
  }
  ended_.push_back(std::move(moved));
  works_.erase(Key(work->side, request.tag));
}

}  // namespace terrace
