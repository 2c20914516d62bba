#include "libtorch/hook/window/window_pins.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

int64_t FootprintOf(const WindowTensor& tensor) {
  return ResidentBytes(tensor.size_bytes());
}

std::vector<uint64_t> TokensOf(absl::Span<WindowTensor* const> tensors) {
  std::vector<uint64_t> tokens;
  for (const WindowTensor* const each : tensors) {
    if (each->token() != 0) tokens.push_back(each->token());
  }
  return tokens;
}

}  // namespace

bool IsNoRoom(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && IoFaultOf(status).error == 0;
}

void WindowPins::Add(absl::Span<WindowTensor* const> tensors) {
  away_ += static_cast<int64_t>(tensors.size());
  order_.Add(tensors);
  for (const WindowTensor* const each : tensors) meter_.NoteAdded(*each);
}

void WindowPins::Remove(WindowTensor& tensor) {
  order_.Remove(tensor);
  const bool was_ahead = std::exchange(tensor.is_ahead_, false);
  if (tensor.is_here() || was_ahead) GiveRoom(tensor);
  if (!tensor.is_here()) --away_;
  // Nobody wants what was written to the tensor any more.
  End(tensor, /*is_written=*/false);
  meter_.NoteForgotten(tensor);
}

void WindowPins::Claim(const Tensors& tensors) {
  for (WindowTensor* const each : tensors) {
    if (!std::exchange(each->is_ahead_, false)) room_.Take(FootprintOf(*each));
  }
  Trim();
}

bool WindowPins::ClaimAhead(WindowTensor& tensor,
                            const UseOrder::VictimRule& rule) {
  room_.Take(FootprintOf(tensor));
  while (room_.over() && EvictOne(rule)) {
  }
  if (room_.over()) {
    GiveRoom(tensor);
    return false;
  }
  tensor.is_ahead_ = true;
  return true;
}

void WindowPins::GiveRoom(const WindowTensor& tensor) {
  room_.Give(FootprintOf(tensor));
}

absl::StatusOr<WindowPins::Brought> WindowPins::Take(const Tensors& tensors,
                                                     Access access,
                                                     const FetchAsker& asker,
                                                     absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(
      WindowQueue::Taken taken,
      queue_.Take(tensors, access, TokensOf(asker.in_use), deadline));
  Brought brought = {std::move(taken.pins), taken.cause};
  if (taken.beyond_bytes == 0) return brought;
  WindowTensor& first = *tensors.front();
  first.beyond_bytes_ = taken.beyond_bytes;
  const int64_t beyond =
      used_beyond_.fetch_add(taken.beyond_bytes) + taken.beyond_bytes;
  // A lease lasts, and a tensor that enters is better off where it is.
  const bool may_be_beyond = asker.caller != FetchAsker::Caller::kLease &&
                             access != Access::kOverwrite;
  if (may_be_beyond && beyond <= beyond_bytes_) {
    room_.NoteBeyond(beyond, asker.operation);
    return brought;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i]->pin_ = std::move(brought.pins[i]);
    End(*tensors[i], /*is_written=*/false);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "what is in use at a time takes ", FormatBytes(room_.used_bytes()),
      ", and the budget is ", FormatBytes(room_.most_bytes())));
}

absl::Status WindowPins::Install(WindowTensor& tensor, Pin pin) {
  std::byte* const data = pin.data().data();
  tensor.pin_ = std::move(pin);
  if (tensor.Install(data)) {
    --away_;
    return absl::OkStatus();
  }
  End(tensor, /*is_written=*/false);
  return absl::FailedPreconditionError(tensor.Told("its storage is gone"));
}

void WindowPins::End(WindowTensor& tensor, bool is_written) {
  if (!tensor.pin_.valid()) return;
  queue_.Forget(tensor);
  is_written ? tensor.pin_.Release() : tensor.pin_.ReleaseUnchanged();
  used_beyond_.fetch_sub(std::exchange(tensor.beyond_bytes_, 0));
}

void WindowPins::Evict(WindowTensor& tensor) {
  auto left = WindowMeter::Left::kUnread;
  auto next = Residency::kCold;
  if (!std::exchange(tensor.is_ahead_, false)) {
    using Writes = WindowTensor::Writes;
    if (!tensor.TakeAway()) {
      tensor.MarkGone();
      next = Residency::kResident;  // with other bytes, if it has a storage
    }
    const auto writes = tensor.gone() ? Writes::kNone : tensor.TakeWrites();
    if (writes == Writes::kUnmarked) meter_.NoteUnmarkedWrite();
    const bool is_clean = writes == Writes::kNone;
    left = is_clean ? WindowMeter::Left::kDropped : WindowMeter::Left::kWritten;
    End(tensor, /*is_written=*/!is_clean);
    ++away_;
  }
  GiveRoom(tensor);
  meter_.NoteEvicted(tensor, left);
  tensor.word().End(next);
}

bool WindowPins::EvictOne(const UseOrder::VictimRule& rule) {
  WindowTensor* const victim = order_.TakeVictim(rule);
  if (victim != nullptr) Evict(*victim);
  return victim != nullptr;
}

void WindowPins::Trim() {
  while (room_.over() && EvictOne()) {
  }
}

}  // namespace terrace
