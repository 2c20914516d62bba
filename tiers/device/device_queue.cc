#include "tiers/device/device_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

// How often to look at copies: of a device that has failed, which calls
// nothing any more; and of one that refused to call.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLookWithoutCalls = absl::Milliseconds(1);

}  // namespace

DeviceQueue::DeviceQueue(DeviceSpace& space, IoDirection direction,
                         const DeviceQueueOptions& options, PathMeter& meter,
                         Clock& clock, std::function<void()> done)
    : space_(space),
      direction_(direction),
      options_(options),
      meter_(meter),
      clock_(clock),
      done_(std::move(done)),
      schedule_(IoQueueOptions().weights) {
  TERRACE_CHECK(options.most_pieces >= 1 && options.piece_bytes >= kBlockBytes);
  TERRACE_CHECK(options.piece_bytes % kBlockBytes == 0);
}

DeviceQueue::~DeviceQueue() = default;

void DeviceQueue::Begin(const Move& move) {
  const bool reads = direction_ == IoDirection::kRead;
  const Extent& place = reads ? move.from : move.to;
  TERRACE_CHECK(move.from.size_bytes == move.to.size_bytes);
  TERRACE_CHECK(move.data != nullptr && place.size_bytes > 0);
  TERRACE_CHECK(place.offset >= 0 && place.end() <= space_.size_bytes());
  TERRACE_CHECK(move.timeout > absl::ZeroDuration());
  auto owned = std::make_unique<Transfer>();
  Transfer* const work = owned.get();
  work->request = {.direction = direction_,
                   .io_class = move.io_class,
                   .data = move.data,
                   .offset = place.offset,
                   .size_bytes = place.size_bytes,
                   .tag = move.tag,
                   .timeout = move.timeout};
  work->order = next_order_++;
  const absl::Time now = clock_.Now();
  work->enqueued = now;
  const bool is_new = works_.try_emplace(move.tag, std::move(owned)).second;
  TERRACE_CHECK(is_new);  // the tag is unique among moves under way
  expiries_.Add(*work);
  schedule_.Add(work, options_.piece_bytes);
  CheckHealth();  // may end it
  BeginPieces(now);
}

void DeviceQueue::Cancel(uint64_t tag) {
  Transfer* const work = Find(tag);
  if (work == nullptr || work->all_issued()) return;
  work->cancelled = true;
  Drop(work);
  Settle(work);
}

void DeviceQueue::Promote(uint64_t tag, IoClass io_class) {
  Transfer* const work = Find(tag);
  if (work == nullptr || io_class >= work->request.io_class) return;
  const bool waited = schedule_.Remove(*work);
  work->request.io_class = io_class;
  if (waited) schedule_.Add(work, options_.piece_bytes);
}

void DeviceQueue::Poll(std::vector<Moved>* moved) {
  if (!works_.empty()) {
    const absl::Time now = clock_.Now();
    looked_ = now;
    TakeEnded(now);
    CheckHealth();
    expiries_.Look(now);
    CheckExpiries(now);
    BeginPieces(now);
  }
  std::move(ended_.begin(), ended_.end(), std::back_inserter(*moved));
  ended_.clear();
}

int64_t DeviceQueue::pending() const {
  return static_cast<int64_t>(works_.size() + ended_.size());
}

absl::Time DeviceQueue::NextEvent() const {
  if (!ended_.empty()) return clock_.Now();
  if (copies_.empty()) return expiries_.NextEvent();
  const absl::Duration look = must_look_ ? kLookWithoutCalls : kLook;
  return std::min(expiries_.NextEvent(),
                  std::max(looked_, copies_.front().issued) + look);
}

Transfer* DeviceQueue::Find(uint64_t tag) const {
  const auto found = works_.find(tag);
  return found == works_.end() ? nullptr : found->second.get();
}

void DeviceQueue::TakeEnded(absl::Time now) {
  if (copies_.empty()) return;
  std::vector<absl::Status> ended;
  Device::Stream& stream =
      direction_ == IoDirection::kRead ? space_.to_host() : space_.to_device();
  stream.Poll(&ended);
  TERRACE_CHECK(ended.size() <= copies_.size());
  for (const absl::Status& status : ended) EndPiece(status, now);
  if (copies_.empty()) must_look_ = false;
}

void DeviceQueue::EndPiece(const absl::Status& status, absl::Time now) {
  const Piece piece = copies_.front();
  copies_.pop_front();
  last_answer_ = now;
  meter_.OnAnswer(piece.request, status.ok() ? piece.request.size_bytes : -1,
                  piece.quarantined, now);
  --piece.work->live_pieces;
  if (status.ok()) {
    Settle(piece.work);
  } else {
    FailPiece(piece.work, status);
  }
}

void DeviceQueue::BeginPieces(absl::Time now) {
  while (static_cast<int>(copies_.size()) < options_.most_pieces) {
    Transfer* const work = schedule_.Next(options_.piece_bytes);
    if (work == nullptr) return;
    const int64_t size_bytes = work->NextPieceBytes(options_.piece_bytes);
    schedule_.Charge(size_bytes);
    BeginPiece(work, size_bytes, now);
  }
}

void DeviceQueue::BeginPiece(Transfer* work, int64_t size_bytes,
                             absl::Time now) {
  const IoRequest request = {
      .direction = direction_,
      .data = work->request.data + work->issued_bytes,
      .offset = work->request.offset + work->issued_bytes,
      .size_bytes = size_bytes,
      .tag = work->request.tag};
  if (const absl::Status status = BeginCopy(request); !status.ok()) {
    work->has_drops = true;
    return FailPiece(work, status);
  }
  work->issued_bytes += size_bytes;
  ++work->live_pieces;
  copies_.push_back({work, request, now});
  if (work->all_issued()) schedule_.Remove(*work);
  meter_.OnIssue(request, now);
}

absl::Status DeviceQueue::BeginCopy(const IoRequest& request) {
  void* const place = space_.At(request.offset);
  const bool reads = direction_ == IoDirection::kRead;
  Device::Stream& stream = reads ? space_.to_host() : space_.to_device();
  absl::Status status =
      reads ? stream.CopyToHost(request.data, place, request.size_bytes)
            : stream.CopyToDevice(place, request.data, request.size_bytes);
  if (status.ok() && !stream.OnDone(done_).ok()) must_look_ = true;
  return status;
}

// A device that has failed begins nothing more. What it has, it tells of.
void DeviceQueue::CheckHealth() {
  const absl::Status health = space_.Health();
  if (health.ok()) return;
  while (Transfer* const work = schedule_.Next(options_.piece_bytes)) {
    work->has_drops = true;
    FailPiece(work, health);
  }
}

// Never falls while the move is under way. Copies end in order, so any end is
// an answer to all.
absl::Time DeviceQueue::ExpiryOf(const Transfer& work) const {
  absl::Time since = work.enqueued;
  const auto first =
      std::find_if(copies_.begin(), copies_.end(),
                   [&](const Piece& piece) { return piece.work == &work; });
  if (first != copies_.end()) since = first->issued;
  return expiries_.ExpiryOf(work, std::max(since, last_answer_));
}

void DeviceQueue::CheckExpiries(absl::Time now) {
  while (Transfer* const work = expiries_.TakeDue(now)) {
    const absl::Time expiry = ExpiryOf(*work);
    if (expiry > now) {
      expiries_.LookAt(expiry, *work);
    } else {
      Expire(work, now);
    }
  }
}

void DeviceQueue::Expire(Transfer* work, absl::Time now) {
  const absl::Status late = LateError(*work);
  Drop(work);
  if (work->live_pieces == 0) {  // the device has none of it
    if (work->first_error.ok()) work->first_error = late;
    return Settle(work);
  }
  work->expired = true;
  for (Piece& piece : copies_) {
    if (piece.work != work) continue;
    piece.quarantined = true;
    meter_.OnQuarantine(piece.request, now);
  }
  ended_.push_back({.tag = work->request.tag, .status = late, .late = true});
}

void DeviceQueue::FailPiece(Transfer* work, const absl::Status& error) {
  if (work->first_error.ok() && !work->cancelled) {
    // Of a move to the device the source is whole.
    const bool wrote = direction_ == IoDirection::kWrite;
    work->first_error = Reworded(
        error,
        wrote && absl::IsDataLoss(error) ? absl::StatusCode::kUnavailable
                                         : error.code(),
        absl::StrCat(Named(*work), ": ", error.message()));
  }
  Drop(work);
  Settle(work);
}

void DeviceQueue::Drop(Transfer* work) {
  if (work->all_issued()) return;
  schedule_.Remove(*work);
  work->issued_bytes = work->request.size_bytes;
  work->has_drops = true;
}

void DeviceQueue::Settle(Transfer* work) {
  if (work->live_pieces > 0 || !work->all_issued()) return;
  const uint64_t tag = work->request.tag;
  Moved moved;
  moved.tag = tag;
  moved.released = work->expired;
  if (work->cancelled) {
    moved.status =
        absl::CancelledError(absl::StrCat("cancelled: ", Named(*work)));
  } else {
    moved.status = work->first_error;
  }
  if (moved.status.ok() && work->has_drops) moved.status = LateError(*work);
  expiries_.Remove(*work);
  ended_.push_back(std::move(moved));
  works_.erase(tag);
}

std::string DeviceQueue::Named(const Transfer& work) const {
  return absl::StrCat(space_.name(), ", stream ",
                      direction_ == IoDirection::kRead ? "from" : "to",
                      " the device, offset ", work.request.offset, ", ",
                      work.request.size_bytes, " bytes");
}

absl::Status DeviceQueue::LateError(const Transfer& work) const {
  const absl::Duration silence =
      clock_.Now() - (ExpiryOf(work) - work.request.timeout);
  return absl::DeadlineExceededError(absl::StrCat(
      Named(work), ": deadline exceeded: no copy has ended for ",
      absl::FormatDuration(absl::Floor(silence, absl::Milliseconds(1))), ", ",
      copies_.size(), " under way"));
}

}  // namespace terrace
