// A Runtime in this process, from parts: what Runtime::Create composes from
// Options, and a test from fakes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_paths.h"
#include "base/clock.h"
#include "base/device.h"
#include "base/executor.h"
#include "base/threads/heartbeat.h"
#include "policies/eviction.h"
#include "policies/path_placement.h"
#include "runtime/messages/request_server.h"
#include "runtime/motion/transcript.h"
#include "runtime/mover/mover.h"
#include "terrace/runtime.h"
#include "terrace/thread_pool.h"
#include "terrace/tier.h"
#include "tiers/disk/disk_file.h"
#include "tiers/medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/page_source.h"
#include "tiers/memory/spill/spill_source.h"

namespace terrace {

struct LocalPath {
  std::unique_ptr<DiskFile> file;
  IoQueueOptions queue;
  PathPrior prior;  // its speed, as far as it is known before the job
  JoinLink link;    // to what it shares with other runtimes; null: nothing
  // For what its file system may hang in; null: a thread of its own.
  std::unique_ptr<Executor> background;
};

// A tier of mapped bytes.
struct LocalMapped {
  TierSpec spec;
  std::shared_ptr<Medium> medium;
  PathPrior prior;
  // For what its file system may hang in; null: a thread of its own.
  std::unique_ptr<Executor> background;
};

// A memory beside the first.
struct LocalMemory {
  TierSpec spec;
  std::shared_ptr<HostArena> arena;
  PinnedMapping pinned;  // where a device copies from and to it
  std::unique_ptr<EvictionPolicy> eviction;
};

struct LocalRuntimeParts {
  Clock* clock = nullptr;  // outlives the runtime
  std::unique_ptr<IoEngine> engine;
  std::vector<CoreDevice> devices;  // above memory
  std::vector<LocalMapped> mapped;  // the faster ones first
  std::vector<LocalPath> paths;
  std::shared_ptr<HostArena> arena;
  PinnedMapping pinned;  // the arena, where a device copies from and to it
  TierSpec memory = {};  // what the arena was asked for as, for Stats
  // For what the arena has no room for; null: the arena's own spill, where it
  // has one, else mappings of this process.
  std::shared_ptr<SpillSource> spill;
  // Of the arena, as far as that can be lent; null: it cannot.
  std::shared_ptr<PageSource> pages;
  std::vector<LocalMemory> other_memories;
  ThreadPool pool;  // others may have it, too
  std::unique_ptr<EvictionPolicy> eviction;
  bool prefetch = true;
  absl::Duration io_timeout = absl::Seconds(60);
  Transcript* transcript = nullptr;      // outlives the runtime; null: none
  std::string machine_profile;           // as Stats tells it
  std::shared_ptr<Heartbeat> heartbeat;  // the mover's; null: nobody looks
  ImageKeeper* keeper = nullptr;         // outlives the runtime; null: none
  // False: nothing turns the crank but the test (or its clock), by mover().
  bool start_thread = true;
};

class LocalRuntime : public Runtime, public TimedRuntime, public RequestServer {
 public:
  // ResourceExhausted: the engine takes no more paths, or there is no thread;
  // Unavailable: pinning took the arena's pages off the node that it must be
  // on.
  static absl::StatusOr<std::unique_ptr<LocalRuntime>> Start(
      LocalRuntimeParts parts);
  virtual Mover& mover() = 0;
  // The first memory's, which lives as long as the runtime.
  virtual HostArena& arena() = 0;
  // It goes on where another one was, whose memory and files it has, before
  // anything else is asked of it; all of that is that client's. DataLoss: the
  // image is none of these, and the runtime is of no use.
  virtual absl::Status Restore(ClientId client, RuntimeImage image) = 0;
  // What the mover does not know of the Stats that it gives.
  virtual void AddOwnStats(Stats* stats) const = 0;
};

}  // namespace terrace
