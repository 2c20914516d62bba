// A WindowMeter counts what a window of bytes has done. It is thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "libtorch/hook/window/window_room.h"
#include "libtorch/hook/window/window_tensor.h"

namespace terrace {

// These are counts of the tensors with numbers, which come and go in each step.
struct NumberedStats {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t live_bytes = 0;  // of the tensors that are there now
  int64_t peak_bytes = 0;
  int64_t evicted_bytes = 0;  // to be written below
  int64_t fetched_bytes = 0;
  absl::Duration blocked;
};

struct ByteWindowStats {
  int64_t used_bytes = 0;  // of the window, headers included
  WindowPeaks peaks;
  int64_t fetches = 0;        // that something waited for
  int64_t fetches_ahead = 0;  // that were begun before they were needed
  int64_t fetched_bytes = 0;
  int64_t evictions = 0;
  int64_t clean_drops = 0;      // of those, without a write
  int64_t unmarked_writes = 0;  // that verify_clean found
  int64_t failures = 0;
  absl::Duration blocked;          // waited for fetches, over all threads
  absl::Duration blocked_on_room;  // of that, before a read could begin
  NumberedStats numbered;          // counted above too
  absl::Status first_error;        // of a fetch, since the beginning
};

class WindowMeter {
 public:
  void NoteAdded(const WindowTensor& tensor);
  void NoteForgotten(const WindowTensor& tensor);
  // Notes that a tensor is here, which something waited for.
  void NoteFetched(const WindowTensor& tensor);
  // Notes that so many of the tensors that were fetched have been read before
  // they were needed.
  void NoteAhead(int64_t tensors);
  // NoteBlocked adds the whole time that a thread waited for a tensor, and
  // NoteBlockedOnRoom the part of that which its room took.
  void NoteBlocked(const WindowTensor& tensor, absl::Duration blocked);
  void NoteBlockedOnRoom(absl::Duration blocked);
  void NoteFailure(const absl::Status& why);
  // Returns why a tensor has failed, as far as that is known: the first failure
  // of the window.
  absl::Status FailedBefore(const WindowTensor& tensor) const;
  void NoteEvicted(const WindowTensor& tensor, bool is_clean);
  void NoteUnmarkedWrite();

  // Returns what the meter knows, without the window's used bytes and peaks.
  ByteWindowStats stats() const;

 private:
  mutable Mutex mutex_;
  ByteWindowStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
