// DRAM to and from mapped tiers (far memory, persistent memory): copies in
// pieces of at most 1 MiB, each a task of the executor's motion lane. At most
// two pieces a worker are in the executor's hands, queued or running, over all
// edges. Which piece a task copies is decided when it runs: of the tier with
// the fewest under way, of its direction with the fewest, by class (as
// aio/queue/class_schedule.h does), within a class first in, first out; so a
// demand waits for the pieces that run, and for a turn of each other edge at
// most, and no tier or direction for the pieces of a slower one.
//
// Whole moves or a Status: the first error of a piece is the move's, and what
// of it does not yet run is not copied. A cancelled move ends as Cancelled once
// what runs has landed; if all of it runs or has landed, it ends as it ends.
// Nothing here times out: a copy that is starved is not late, and `timeout` and
// `need_by` of a move are not looked at.
//
// One thread, the mover's, but for stats, which is thread-safe. Tasks share
// what they use with the transport, which may be destroyed while they run: it
// drops what does not run and is silent about the rest. Media, the memory of
// moves and `clock` outlive the tasks: until pending() is 0, or the executor
// is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "tiers/copy_queue.h"
#include "tiers/transport.h"

namespace terrace {

class CopyTransport final : public Transport {
 public:
  // `wake` is called when a move has ended and Poll has something to say: on
  // the executor's threads or the caller's, and not after the destructor. It
  // must not call the transport. `executor` outlives the transport.
  CopyTransport(const std::vector<CopyEnd>& ends, Executor& executor,
                Clock& clock, std::function<void()> wake);
  ~CopyTransport() override;
  CopyTransport(const CopyTransport&) = delete;
  CopyTransport& operator=(const CopyTransport&) = delete;

  void Begin(const Move& move) override;
  void Cancel(Edge edge, uint64_t tag) override;
  void Promote(Edge edge, uint64_t tag, IoClass io_class) override;
  void Poll(std::vector<Moved>* moved) override;
  // Moves whose end Poll did not take. 0: no task touches a medium or memory.
  int64_t pending() const override;
  absl::Time NextEvent() const override { return absl::InfiniteFuture(); }

  // Of a mapped tier: what was copied from it (read) and to it (written); busy
  // while a piece runs, not while it waits.
  IoPathStats stats(TierId tier) const;

 private:
  class Box;
  const std::shared_ptr<Box> box_;  // shared with tasks
};

}  // namespace terrace
