#include "libtorch/hook/window/byte_window.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/hook/window/fingerprint.h"

namespace terrace {
namespace {

int64_t FootprintOf(const WindowTensor& tensor) {
  return ResidentBytes(tensor.size_bytes());
}

absl::Status Gone(const WindowTensor& tensor) {
  return absl::FailedPreconditionError(tensor.Told("its storage is gone"));
}

}  // namespace

ByteWindow::ByteWindow(Runtime& runtime, const ByteWindowOptions& options)
    : runtime_(runtime),
      options_(options),
      room_(options.window_bytes,
            options.most_bytes > 0 ? options.most_bytes
                                   : runtime.GetStats().host.budget_bytes,
            options.beyond_bytes),
      bytes_(runtime, options.patience),
      ordinary_(options.available_bytes) {}

absl::Status ByteWindow::Add(absl::Span<WindowTensor* const> tensors) {
  std::vector<TensorSpec> specs;
  for (const WindowTensor* const tensor : tensors) {
    specs.push_back({tensor->name(), tensor->size_bytes(), 0});
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorId> ids,
                           bytes_.Register(specs));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i]->id_ = ids[i];
  away_ += static_cast<int64_t>(tensors.size());
  order_.Add(tensors);
  for (const WindowTensor* const each : tensors) meter_.NoteAdded(*each);
  return absl::OkStatus();
}

absl::Status ByteWindow::Fill(WindowTensor& tensor, const std::byte* source,
                              RoomPatience patience) {
  TERRACE_CHECK(tensor.word().BeginLoad());
  Claim(tensor);
  absl::StatusOr<Pin> pin =
      Bring(tensor, Access::kOverwrite, Caller::kOperation, patience);
  absl::Status status = pin.status();
  if (pin.ok()) {
    std::memcpy(pin->data().data(), source, pin->data().size());
    if (!tensor.Install(pin->data().data())) status = Gone(tensor);
  }
  if (!status.ok()) {
    if (pin.ok()) pin->ReleaseUnchanged();  // the tensor has no contents yet
    room_.Give(FootprintOf(tensor));
    tensor.word().End(Residency::kCold);
    return status;
  }
  tensor.pin_ = *std::move(pin);
  tensor.MarkWritten();
  order_.Note(tensor);
  --away_;
  room_.NotePeak([&] { return order_.PinnedBytesWith(&tensor); });
  tensor.word().End(Residency::kResident);
  return absl::OkStatus();
}

void ByteWindow::Remove(WindowTensor& tensor) {
  tensor.word().Take();
  RemoveOwned(tensor);
}

void ByteWindow::RemoveOwned(WindowTensor& tensor) {
  order_.Remove(tensor);
  if (!tensor.is_here()) --away_;
  if (tensor.pin_.valid() || tensor.fetch_ != nullptr) {
    room_.Give(FootprintOf(tensor));
  }
  spill_.Drop(tensor);
  tensor.fetch_.reset();
  // Nobody wants what was written to the tensor any more.
  tensor.pin_.ReleaseUnchanged();
  // A closed Runtime, or one in a forked child, has nothing left to forget.
  runtime_.Unregister(tensor.id_).IgnoreError();
  meter_.NoteForgotten(tensor);
  tensor.word().End(Residency::kCold);
}

absl::Status ByteWindow::Fetch(WindowTensor& tensor, Caller caller,
                               RoomPatience patience) {
  if (caller == Caller::kBeside) patience = RoomPatience::kBeside;
  const absl::Time begun = absl::Now();
  absl::Status status;
  while (true) {
    const Residency state = patience == RoomPatience::kNone
                                ? tensor.word().state()
                                : tensor.word().Await();
    if (state == Residency::kResident) break;
    if (ResidencyWord::IsOwned(state)) {
      status = absl::ResourceExhaustedError("another thread brings it");
      break;
    }
    if (state == Residency::kFailed) {
      status = meter_.FailedBefore(tensor);
      break;
    }
    if (!tensor.word().BeginLoad()) continue;
    status = Load(tensor, caller, patience);
    break;
  }
  if (caller == Caller::kBeside) return status;
  const absl::Duration blocked = absl::Now() - begun;
  tensor.NoteBlocked(blocked);
  meter_.NoteBlocked(tensor, blocked);
  return status;
}

absl::Status ByteWindow::Load(WindowTensor& tensor, Caller caller,
                              RoomPatience patience) {
  const bool is_ahead = tensor.fetch_ != nullptr;
  if (!is_ahead) Claim(tensor);
  absl::StatusOr<Pin> pin = Bring(tensor, Access::kUpdate, caller, patience);
  if (!pin.ok()) return Fail(tensor, pin.status(), caller);
  if (options_.verify_clean && !tensor.never_clean_) {
    tensor.fingerprint_ = Fingerprint(pin->data());
    tensor.is_checked_ = true;
  }
  if (!tensor.Install(pin->data().data())) {
    pin->ReleaseUnchanged();
    room_.Give(FootprintOf(tensor));
    tensor.word().End(Residency::kCold);
    return Gone(tensor);
  }
  tensor.pin_ = *std::move(pin);
  --away_;
  if (caller != Caller::kBeside) {
    room_.NotePeak([&] { return order_.PinnedBytesWith(&tensor); });
    meter_.NoteFetched(tensor, is_ahead);
  }
  tensor.word().End(Residency::kResident);
  return absl::OkStatus();
}

absl::StatusOr<Pin> ByteWindow::Bring(WindowTensor& tensor, Access access,
                                      Caller caller, RoomPatience patience) {
  const absl::Time end = absl::Now() + options_.patience;
  while (true) {
    // The cause of a fetch that failed ahead of need may be mended by now.
    bool is_again = tensor.fetch_ != nullptr;
    TERRACE_RETURN_IF_ERROR(Ask(tensor, access, caller, patience));
    absl::StatusOr<Pin> pin = bytes_.Take(*tensor.fetch_);
    tensor.fetch_.reset();
    is_again |= absl::IsAborted(pin.status());
    if (pin.ok() || !is_again || absl::Now() >= end) return pin;
  }
}

absl::Status ByteWindow::Ask(WindowTensor& tensor, Access access, Caller caller,
                             RoomPatience patience) {
  if (tensor.fetch_ != nullptr) return absl::OkStatus();  // begun ahead
  const absl::Time begun = absl::Now();
  const bool is_new = access == Access::kOverwrite && tensor.number() >= 0;
  RoomWait wait(room_, order_, patience, options_.beside);
  absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
      bytes_.Ask({.tensor = tensor.id_,
                  .access = access,
                  .own_bytes = is_new ? tensor.size_bytes() : 0},
                 [&](absl::Time until) { return MakeRoom(wait, until); });
  // Only fetches for operations and leases count as blocked on room.
  if (access != Access::kOverwrite && caller != Caller::kBeside) {
    meter_.NoteBlockedOnRoom(absl::Now() - begun);
  }
  TERRACE_ASSIGN_OR_RETURN(tensor.fetch_, std::move(queue));
  return absl::OkStatus();
}

// The window has room for the tensor, but in memory that lies in parts between
// pinned tensors: one more tensor leaves.
absl::StatusOr<bool> ByteWindow::MakeRoom(RoomWait& wait, absl::Time until) {
  if (EvictOne()) return true;
  const absl::StatusOr<bool> waited = wait.Await(until);
  // Tensors that were in use at the first look may be free by now.
  return !waited.ok() && EvictOne() ? true : waited;
}

absl::Status ByteWindow::Fail(WindowTensor& tensor, const absl::Status& why,
                              Caller caller) {
  const absl::Status status = Reworded(why, tensor.Told(why.message()));
  room_.Give(FootprintOf(tensor));
  // A caller that is told of no room may come again when there is some.
  const bool is_refused = caller == Caller::kOperation && !IsNoRoom(status);
  if (is_refused) tensor.Refuse(std::string(status.message()));
  if (is_refused || !absl::IsResourceExhausted(status)) {
    meter_.NoteFailure(status);
  }
  tensor.word().End(is_refused ? Residency::kFailed : Residency::kCold);
  return status;
}

absl::Status ByteWindow::FetchBeyond(WindowTensor& tensor,
                                     absl::string_view operation) {
  TERRACE_RETURN_IF_ERROR(
      Fetch(tensor, Caller::kOperation, RoomPatience::kTurn));
  // A tensor that another operation has pinned too stays where it is.
  if (tensor.is_spilled() || !tensor.word().BeginMove()) {
    return absl::OkStatus();
  }
  if (spill_.Take(tensor)) {
    room_.Give(FootprintOf(tensor));
    room_.NoteBeyond(spill_.used_bytes(), operation);
  }
  tensor.word().End(Residency::kResident);
  return absl::OkStatus();
}

void ByteWindow::RefuseFetch(WindowTensor& tensor, const absl::Status& why) {
  if (!tensor.word().BeginLoad()) return;
  if (tensor.fetch_ != nullptr) room_.Give(FootprintOf(tensor));
  tensor.fetch_.reset();
  const absl::Status status = Reworded(why, tensor.Told(why.message()));
  tensor.Refuse(std::string(status.message()));
  meter_.NoteFailure(status);
  tensor.word().End(Residency::kCold);
}

void ByteWindow::EndUse(WindowTensor& tensor, RoomPatience patience) {
  tensor.is_spilled() ? EndBeyond(tensor, patience) : tensor.word().Unpin();
  if (room_.over()) Trim();
}

void ByteWindow::EndBeyond(WindowTensor& tensor, RoomPatience patience) {
  if (!tensor.word().UnpinToEvict()) return;
  Claim(tensor);  // room in the Runtime for the write-back
  RoomWait wait(room_, order_, patience, options_.beside);
  const absl::Status status = spill_.WriteBack(
      tensor, [&](absl::Time until) { return MakeRoom(wait, until); });
  room_.Give(FootprintOf(tensor));
  const bool has_storage = status.ok() && tensor.TakeAway();
  if (!has_storage) {
    // The tensor stays spilled until its next use ends, or its removal.
    if (status.ok()) tensor.MarkGone();
    return tensor.word().End(Residency::kResident);
  }
  spill_.Drop(tensor);
  ++away_;
  tensor.word().End(Residency::kCold);
}

void ByteWindow::FetchAhead(WindowTensor& tensor) {
  if (tensor.word().state() != Residency::kCold || tensor.gone()) return;
  if (!tensor.word().BeginLoad()) return;
  if (tensor.fetch_ != nullptr) {
    tensor.word().End(Residency::kReady);  // another thread has just begun it
    return;
  }
  BeginAhead(tensor, {.may_be_ready = false});
}

void ByteWindow::FetchUpcoming() {
  // One look at each position is enough: room comes with the next use.
  if (away_.load(std::memory_order_relaxed) == 0) return;
  const size_t position = order_.position();
  if (looked_at_.exchange(position, std::memory_order_relaxed) == position) {
    return;
  }
  while (away_.load(std::memory_order_relaxed) > 0) {
    const UseOrder::Upcoming next =
        order_.TakeUpcoming(room_.window_bytes() / 2);
    if (next.tensor == nullptr ||
        !BeginAhead(*next.tensor, {.used_after = next.next_use})) {
      return;
    }
  }
}

bool ByteWindow::BeginAhead(WindowTensor& tensor,
                            const UseOrder::VictimRule& rule) {
  room_.Take(FootprintOf(tensor));
  while (room_.over() && EvictOne(rule)) {
  }
  absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
      absl::ResourceExhaustedError("the window is full");
  if (!room_.over()) queue = bytes_.AskAtOnce(tensor.id_);
  if (!queue.ok()) {
    room_.Give(FootprintOf(tensor));
    tensor.word().End(Residency::kCold);
    return false;
  }
  tensor.fetch_ = *std::move(queue);
  meter_.NoteFetchAhead();
  tensor.word().End(Residency::kReady);
  return true;
}

void ByteWindow::Claim(const WindowTensor& tensor) {
  room_.Take(FootprintOf(tensor));
  Trim();
}

void ByteWindow::Trim() {
  while (room_.over() && EvictOne()) {
  }
}

int64_t ByteWindow::EvictAll() {
  // Other threads may bring tensors back meanwhile.
  const auto most = static_cast<int64_t>(order_.size());
  int64_t count = 0;
  while (count < most && EvictOne()) ++count;
  return count;
}

bool ByteWindow::EvictOne(const UseOrder::VictimRule& rule) {
  WindowTensor* const victim = order_.TakeVictim(rule);
  if (victim != nullptr) EvictOwned(*victim);
  return victim != nullptr;
}

void ByteWindow::EvictOwned(WindowTensor& tensor) {
  auto left = WindowMeter::Left::kUnread;
  auto next = Residency::kCold;
  if (tensor.fetch_ != nullptr) {
    tensor.fetch_.reset();
  } else {
    using Writes = WindowTensor::Writes;
    if (!tensor.TakeAway()) {
      tensor.MarkGone();
      next = Residency::kResident;  // with other bytes, if it has a storage
    }
    const auto writes = tensor.gone() ? Writes::kNone : tensor.TakeWrites();
    if (writes == Writes::kUnmarked) meter_.NoteUnmarkedWrite();
    const bool is_clean = writes == Writes::kNone;
    left = is_clean ? WindowMeter::Left::kDropped : WindowMeter::Left::kWritten;
    is_clean ? tensor.pin_.ReleaseUnchanged() : tensor.pin_.Release();
    ++away_;
  }
  room_.Give(FootprintOf(tensor));
  meter_.NoteEvicted(tensor, left);
  tensor.word().End(next);
}

void ByteWindow::Retry() {
  for (WindowTensor* const each : order_.TakeFailed()) {
    each->word().End(Residency::kCold);
  }
}

absl::Status ByteWindow::MoveOut(WindowTensor& tensor) {
  const absl::Status room = ordinary_.CheckRoom(tensor.size_bytes());
  if (!room.ok()) return Reworded(room, tensor.Told(room.message()));
  tensor.word().Hold();
  // As for a lease, a tensor that cannot be brought may be tried again.
  absl::Status status = Fetch(tensor, Caller::kLease);
  if (!status.ok()) {
    tensor.word().Unpin();
    return status;
  }
  // Take ends the hold without a gap in which another thread could evict.
  tensor.word().Take(/*is_held=*/true);
  status = tensor.MoveOut();
  if (!status.ok()) {
    tensor.word().End(Residency::kResident);
    return status;
  }
  RemoveOwned(tensor);
  return absl::OkStatus();
}

void ByteWindow::Refuse(WindowTensor& tensor, const std::string& why) {
  tensor.word().Take();
  if (!tensor.is_here() || tensor.TakeAway()) {
    tensor.Refuse(tensor.Told(why));
  }
  RemoveOwned(tensor);
}

ByteWindowStats ByteWindow::stats() const {
  ByteWindowStats stats = meter_.stats();
  stats.used_bytes = room_.used_bytes();
  stats.peaks = room_.peaks();
  return stats;
}

}  // namespace terrace
