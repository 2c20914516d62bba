#include "libtorch/hook/window/window_meter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

bool IsNumbered(const WindowTensor& tensor) { return tensor.number() >= 0; }

}  // namespace

void WindowMeter::NoteAdded(const WindowTensor& tensor) {
  if (!IsNumbered(tensor)) return;
  MutexLock lock(mutex_);
  NumberedStats& numbered = stats_.numbered;
  ++numbered.tensors;
  numbered.bytes += tensor.size_bytes();
  numbered.live_bytes += tensor.size_bytes();
  numbered.peak_bytes = std::max(numbered.peak_bytes, numbered.live_bytes);
}

void WindowMeter::NoteForgotten(const WindowTensor& tensor) {
  if (!IsNumbered(tensor)) return;
  MutexLock lock(mutex_);
  stats_.numbered.live_bytes -= tensor.size_bytes();
}

void WindowMeter::NoteAhead(int64_t tensors) {
  MutexLock lock(mutex_);
  stats_.fetches -= tensors;
  stats_.fetches_ahead += tensors;
}

void WindowMeter::NoteFetched(const WindowTensor& tensor) {
  MutexLock lock(mutex_);
  ++stats_.fetches;
  stats_.fetched_bytes += tensor.size_bytes();
  if (IsNumbered(tensor)) stats_.numbered.fetched_bytes += tensor.size_bytes();
}

void WindowMeter::NoteBlocked(const WindowTensor& tensor,
                              absl::Duration blocked) {
  MutexLock lock(mutex_);
  stats_.blocked += blocked;
  if (IsNumbered(tensor)) stats_.numbered.blocked += blocked;
}

void WindowMeter::NoteBlockedOnRoom(absl::Duration blocked) {
  MutexLock lock(mutex_);
  stats_.blocked_on_room += blocked;
}

void WindowMeter::NoteFailure(const absl::Status& why) {
  MutexLock lock(mutex_);
  ++stats_.failures;
  if (stats_.first_error.ok()) stats_.first_error = why;
}

absl::Status WindowMeter::FailedBefore(const WindowTensor& tensor) const {
  const absl::Status first = stats().first_error;
  return Reworded(first,
                  tensor.Told(absl::StrCat("it failed before; the first to: ",
                                           first.message())));
}

void WindowMeter::NoteEvicted(const WindowTensor& tensor, bool is_clean) {
  MutexLock lock(mutex_);
  ++stats_.evictions;
  if (is_clean) {
    ++stats_.clean_drops;
  } else if (IsNumbered(tensor)) {
    stats_.numbered.evicted_bytes += tensor.size_bytes();
  }
}

void WindowMeter::NoteUnmarkedWrite() {
  MutexLock lock(mutex_);
  ++stats_.unmarked_writes;
}

ByteWindowStats WindowMeter::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace terrace
