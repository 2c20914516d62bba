// A Runtime for state that all fits: its tensors stay in memory, so that
// nothing moves and no part has to move it. There are no paths, no mover and no
// windows; what it has of threads are those that it is given, which any number
// of such runtimes may share.
//
//   auto threads = ThreadPool::Create(0);
//   auto runtime = MemoryRuntime::Create(*threads);
//   runtime->Reserve(64 << 20);
//
// As terrace/runtime.h, with these differences. A pin shows the tensor itself.
// A queue's window takes no memory: its slots say how many tensors a group may
// have; a queue of bytes recalls pins for another's access alone. There is no
// budget (Stats::host_budget_bytes is INT64_MAX / 2): memory is what Reserve
// took, and a Register that finds no room there is ResourceExhausted. The pages
// that the kernel gave for it are not looked at (Stats), nor is the node where
// none is named. Prefetch does nothing. Pins that are held when the Runtime
// goes keep the memory until they end.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "terrace/runtime.h"
#include "terrace/thread_pool.h"

namespace terrace {

class MemoryRuntime : public Runtime {
 public:
  // On a node, all of it; -1: on the one that the threads are nearest to, as
  // far as there is room.
  static std::unique_ptr<MemoryRuntime> Create(ThreadPool threads,
                                               int node = -1);

  // Takes memory, in one piece, for tensors that are registered later: each of
  // these takes its size in whole pages of 4 KiB. ResourceExhausted: there is
  // no such memory. Unavailable: no such node, with those that there are.
  // Cancelled: after Close.
  virtual absl::Status Reserve(int64_t size_bytes) = 0;

  // Gives back the pieces in which there is no tensor.
  virtual void ReleaseUnused() = 0;
};

}  // namespace terrace
