#include "aio/uring/uring_wake.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {

static_assert(UringWake::kPlace != LIBURING_UDATA_TIMEOUT);

int UringWake::Open() {
  const ForkPause pause;
  fd_ = OwnDescriptor::Of(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  return fd_.ok() ? 0 : errno;
}

void UringWake::Signal() const {
  const uint64_t one = 1;
  // Fails only when 2^64 - 1 wakes are pending: then it is woken anyway.
  [[maybe_unused]] const ssize_t written = write(fd(), &one, sizeof(one));
}

void UringWake::Arm(io_uring* ring) {
  if (is_armed_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(ring);
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, fd(), POLLIN);
  io_uring_sqe_set_data64(sqe, kPlace);
  is_armed_ = true;
}

void UringWake::OnPolled() {
  is_armed_ = false;
  Take();
}

void UringWake::Take() {
  uint64_t wakes = 0;
  if (read(fd(), &wakes, sizeof(wakes)) == sizeof(wakes)) is_woken_ = true;
}

}  // namespace terrace
