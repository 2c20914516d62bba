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

void WindowPins::Remove(WindowTensor& tensor) {
  {
    MutexLock lock(mutex_);
    failed_.erase(&tensor);
  }
  // Nobody wants what was written to the tensor any more.
  End(tensor, /*is_written=*/false, /*is_removed=*/true);
  meter_.NoteForgotten(tensor);
}

absl::StatusOr<WindowPins::Brought> WindowPins::Take(const Tensors& tensors,
                                                     Access access,
                                                     const FetchAsker& asker,
                                                     absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(
      WindowQueue::Taken taken,
      queue_.Take(tensors, access, TokensOf(asker.in_use), deadline,
                  FetchAsker::LaneOf(asker.caller)));
  Brought brought = {std::move(taken.pins), taken.cause, taken.ahead};
  for (const WindowTensor* const each : tensors) room_.Take(FootprintOf(*each));
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
  const int64_t used_bytes = room_.used_bytes();
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i]->pin_ = std::move(brought.pins[i]);
    End(*tensors[i], /*is_written=*/false);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("what is in use at a time takes ", FormatBytes(used_bytes),
                   ", and the budget is ", FormatBytes(room_.most_bytes())));
}

absl::Status WindowPins::Install(WindowTensor& tensor, Pin pin) {
  std::byte* const data = AddressOf(pin);
  tensor.pin_ = std::move(pin);
  if (tensor.Install(data)) return absl::OkStatus();
  End(tensor, /*is_written=*/false);
  return absl::FailedPreconditionError(tensor.Told("its storage is gone"));
}

void WindowPins::GiveBack(WindowTensor& tensor, Pin pin) {
  tensor.pin_ = std::move(pin);
  End(tensor, /*is_written=*/false);
}

void WindowPins::End(WindowTensor& tensor, bool is_written, bool is_removed) {
  const bool has_pin = tensor.pin_.valid();
  if (has_pin) queue_.Forget(tensor);
  Pin pin = std::move(tensor.pin_);
  later_->Begin();
  tensor.AfterUses([runtime = &runtime_, later = later_, id = tensor.id_,
                    is_written, is_removed, pin = std::move(pin)](
                       const absl::Status& status, bool is_over) mutable {
    if (!is_over) {
      pin.Discard();  // nobody knows what the bytes are
    } else {
      is_written ? pin.Release() : pin.ReleaseUnchanged();
    }
    later->End(status, [&] {
      // A closed Runtime, or one in a forked child, has nothing to forget.
      if (is_removed) runtime->Unregister(id).IgnoreError();
    });
  });
  if (!has_pin) return;
  room_.Give(FootprintOf(tensor));
  used_beyond_.fetch_sub(std::exchange(tensor.beyond_bytes_, 0));
}

void WindowPins::Evict(WindowTensor& tensor) {
  auto next = Residency::kCold;
  if (!tensor.TakeAway()) {
    tensor.MarkGone();
    next = Residency::kResident;  // with other bytes, if it has a storage
  }
  using Writes = WindowTensor::Writes;
  const auto writes = tensor.gone() ? Writes::kNone : tensor.TakeWrites();
  if (writes == Writes::kUnmarked) meter_.NoteUnmarkedWrite();
  const bool is_clean = writes == Writes::kNone;
  End(tensor, /*is_written=*/!is_clean);
  meter_.NoteEvicted(tensor, is_clean);
  tensor.word().End(next);
}

absl::Status WindowPins::Shut(absl::Time deadline) {
  absl::Status ended = later_->Shut(deadline);
  queue_.Shut();
  return ended;
}

void WindowPins::NoteFailed(WindowTensor& tensor) {
  MutexLock lock(mutex_);
  failed_.insert(&tensor);
}

std::vector<WindowTensor*> WindowPins::TakeFailed() {
  std::vector<WindowTensor*> failed;
  MutexLock lock(mutex_);
  // No tensor is removed while the mutex is held; once its word is ours, it
  // cannot be.
  absl::erase_if(failed_, [&failed](WindowTensor* each) {
    const bool is_ours = each->word().BeginRetry();
    if (is_ours) failed.push_back(each);
    return is_ours;  // else it is about to fail, and stays for the next call
  });
  return failed;
}

}  // namespace terrace
