// LaterEnds counts the ends of pins that come later than their tensors leave a
// window, since a device still does what it was given with the bytes. It is
// shared by the window and by all that has still to end.
//
// It is thread-safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace terrace {

class LaterEnds {
 public:
  // Each Begin is followed by one End, on any thread.
  void Begin();
  // Does the `rest`, for which the Runtime has to be there, and notes an error.
  // Does nothing once Shut has returned.
  void End(const absl::Status& status, absl::FunctionRef<void()> rest);
  // Waits until all have ended that had begun, or until then.
  void Await(absl::Time deadline);
  // Waits until all have ended, or gives up those that have not by then, which
  // is DeadlineExceeded; an end that is under way it waits for in any case.
  absl::Status Shut(absl::Time deadline);

  // Returns the first error of an end.
  absl::Status first_error() const;
  int64_t failures() const;

 private:
  mutable Mutex mutex_;
  CondVar ended_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ending_ ABSL_GUARDED_BY(mutex_) = 0;       // of these, in their rest
  int64_t ended_count_ ABSL_GUARDED_BY(mutex_) = 0;  // ever
  int64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_shut_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
