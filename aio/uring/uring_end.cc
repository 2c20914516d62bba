#include "aio/uring/uring_end.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "aio/uring/uring_trial.h"

namespace terrace {

absl::Status UringEnd::Watch(io_uring* ring, int place) {
  // A child that had the writing end would keep the end from being seen.
  const ForkPause pause;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return RingRefusal("pipe", errno);
  const int registered = io_uring_register_files_update(
      ring, static_cast<unsigned>(place), &ends[1], 1);
  close(ends[1]);  // the ring's is the only one now
  if (registered != 1) {
    close(ends[0]);
    return RingRefusal("io_uring_register(IORING_REGISTER_FILES_UPDATE)",
                       registered < 0 ? -registered : EINVAL);
  }
  fd_ = OwnDescriptor::Of(ends[0]);
  return absl::OkStatus();
}

bool UringEnd::Await(absl::Duration patience) const {
  if (!fd_.ok()) return false;
  pollfd end = {fd(), POLLIN, 0};
  const timespec time = absl::ToTimespec(patience);
  return ppoll(&end, 1, &time, nullptr) > 0;
}

}  // namespace terrace
