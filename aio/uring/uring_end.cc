#include "aio/uring/uring_end.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>

namespace terrace {

UringEnd::~UringEnd() {
  if (fd_ >= 0) close(fd_);
}

bool UringEnd::Watch(io_uring* ring, int place) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const bool is_there =
      io_uring_register_files_update(ring, static_cast<unsigned>(place),
                                     &ends[1], 1) == 1;
  close(ends[1]);  // the ring's is the only one now
  if (is_there) {
    fd_ = ends[0];
  } else {
    close(ends[0]);
  }
  return is_there;
}

bool UringEnd::Await(absl::Duration patience) const {
  if (fd_ < 0) return false;
  pollfd end = {fd_, POLLIN, 0};
  const timespec time = absl::ToTimespec(patience);
  return ppoll(&end, 1, &time, nullptr) > 0;
}

}  // namespace terrace
