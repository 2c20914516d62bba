// A ring that children of fork() close: what is registered there would stay
// pinned, and its files claimed, as long as one of them lives.
//
// One thread at a time.
#pragma once

#include "base/process.h"

struct io_uring;
struct io_uring_params;

namespace terrace {

class UringRing {
 public:
  // io_uring_queue_init_params; 0 or an errno.
  int Open(unsigned entries, io_uring* ring, io_uring_params* params);
  // io_uring_queue_exit. Not in a child, whose copy is closed.
  void Exit(io_uring* ring);

 private:
  ClosedInChildren entry_;
};

}  // namespace terrace
