// An executor of real threads. Motion goes first, but while computation waits
// at most half of the threads run motion; a single thread runs of both in turn.
// First in, first out within a lane.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/threads/pool_loops.h"

namespace terrace {

// `threads` >= 1. Thread i is pinned to the processor cpus[i % cpus.size()]
// (numbers of the operating system); an empty list pins nothing. The threads
// block all signals, so that a program's handlers run elsewhere, and compute in
// the default floating-point environment, whatever that of the caller is.
//
// InvalidArgument: threads < 1, or a processor that this process may not use
// (the message names it). ResourceExhausted: no more threads.
//
// The destructor runs what was queued, also what these tasks queue, then joins.
// It must not be called by a task.
//
// With `loops` each thread answers by its heartbeat between two tasks, says
// whom a task is for where that tells, and sleeps at their word. A task of more
// than a tenth of a second answers itself, by OwnLoop.
absl::StatusOr<std::unique_ptr<Executor>> MakePoolExecutor(
    int threads, absl::Span<const int> cpus,
    std::shared_ptr<PoolLoops> loops = nullptr);

}  // namespace terrace
