#include "aio/uring/uring_wake.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {

static_assert(UringWake::kPlace != LIBURING_UDATA_TIMEOUT);

UringWake::~UringWake() {
  if (fd_ >= 0) close(fd_);
}

int UringWake::Open() {
  fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return fd_ >= 0 ? 0 : errno;
}

void UringWake::Signal() const {
  const uint64_t one = 1;
  // Fails only when 2^64 - 1 wakes are pending: then it is woken anyway.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

void UringWake::Arm(io_uring* ring) {
  if (is_armed_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(ring);
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, fd_, POLLIN);
  io_uring_sqe_set_data64(sqe, kPlace);
  is_armed_ = true;
}

void UringWake::OnPolled() {
  is_armed_ = false;
  Take();
}

void UringWake::Take() {
  uint64_t wakes = 0;
  if (read(fd_, &wakes, sizeof(wakes)) == sizeof(wakes)) is_woken_ = true;
}

}  // namespace terrace
