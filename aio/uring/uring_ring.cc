#include "aio/uring/uring_ring.h"

#include <liburing.h>

namespace terrace {

int UringRing::Open(unsigned entries, io_uring* ring, io_uring_params* params) {
  const ForkPause pause;
  const int error = -io_uring_queue_init_params(entries, ring, params);
  if (error != 0) return error;
  // A forked child must not touch the ring.
  io_uring_ring_dontfork(ring);
  entry_ = ClosedInChildren(ring->ring_fd);
  return 0;
}

void UringRing::Exit(io_uring* ring) {
  const ForkPause pause;
  io_uring_queue_exit(ring);
  entry_.Forget();
}

}  // namespace terrace
