// Tells when the kernel has let go of a ring and of every buffer that its
// requests had, where it cannot be asked by the ring's own calls any more: the
// ring has the writing end of a pipe among its files, which are closed after
// its last request. The reading end hangs up then.
//
// One thread at a time.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process.h"

struct io_uring;

namespace terrace {

class UringEnd {
 public:
  UringEnd() = default;
  UringEnd(const UringEnd&) = delete;
  UringEnd& operator=(const UringEnd&) = delete;

  // Takes this place of the ring's table of files. An error of the call that
  // was refused: the end of the ring cannot be seen.
  absl::Status Watch(io_uring* ring, int place);

  // Readable from the end on, for poll(); -1: it cannot be seen.
  int fd() const { return fd_.get(); }
  // Waits so long for it at most. False: it has not come.
  bool Await(absl::Duration patience) const;

 private:
  OwnDescriptor fd_;
};

}  // namespace terrace
