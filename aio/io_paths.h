// All disk paths of one runtime: one engine, one IoQueue per path. Whole
// transfers or a Status, never short; exactly one completion each.
//
// Used by one thread at a time, the mover; only Wake is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_transfer.h"
#include "aio/queue/link_share.h"
#include "base/clock.h"

namespace terrace {

class IoPaths {
 public:
  // `clock` must outlive them.
  IoPaths(std::unique_ptr<IoEngine> engine, Clock& clock);
  // TERRACE_CHECKs that nothing is in flight; see Abandon.
  ~IoPaths();

  // `name` (a file's path) is what errors name. `fd` as IoEngine::AddFile
  // takes it; it must outlive them. `join`: to the link that others share;
  // null: the path has one of its own.
  absl::StatusOr<int> AddPath(const std::string& name, int fd,
                              const IoQueueOptions& options,
                              const JoinLink& join = nullptr);

  // The tag is unique among this path's pending transfers. Never blocks,
  // never fails: every end is a Completion.
  void Enqueue(int path, const IoTransfer& transfer);

  // Drops what is not yet issued; the transfer ends as Cancelled when its
  // issued pieces have landed. False: no such transfer.
  bool Cancel(int path, uint64_t tag);

  // Raises a pending transfer to a more urgent class.
  void Promote(int path, uint64_t tag, IoClass io_class);

  // Turns the crank: reaps, continues, retries, refills what is in flight,
  // appends what ended. Never blocks.
  void Poll(std::vector<Completion>* completions);

  // Pending transfers, over all paths, quarantined ones included.
  int64_t pending() const;

  // When Poll has something to do without an outside event: retries, timeouts
  // and looks for them, paced completions. InfiniteFuture when none.
  absl::Time NextEvent() const;
  // Until something has ended, a Wake, NextEvent, or `deadline`.
  void Wait(absl::Time deadline);
  // The same of a thread that has asked for NextEvent: it looks at the engine
  // alone, so that meanwhile another one may enqueue, cancel and promote.
  void Sleep(absl::Time deadline);
  void Wake();  // thread-safe, sticky

  void RegisterArena(absl::Span<std::byte> arena);
  // As the engine's.
  bool UnregisterArena(absl::Span<std::byte> part);
  EngineInfo engine_info() const;
  IoPathStats stats(int path) const;

  // Leaks the engine and its buffers on purpose, for a Close that timed out.
  // What they have in flight takes no room of a link that is shared any more.
  void Abandon();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace terrace
