// What a Runtime is made from. The defaults are good; only the budget and the
// paths are the user's to say.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "terrace/thread_pool.h"
#include "terrace/tier.h"

namespace terrace {

enum class EngineKind : uint8_t {
  // io_uring where the kernel allows it and no path is on FUSE, else threads;
  // Stats says why.
  kAuto,
  kUring,    // an error where it cannot be had
  kThreads,  // a pread/pwrite pool
};

enum class HugePages : uint8_t { kOff, kPreferred, kRequired };

enum class EvictionKind : uint8_t { kLru, kNextUse };

// A device of a known rate: completions are delivered no earlier than the
// rate allows. 0: not paced.
struct PaceOptions {
  int64_t read_bytes_per_second = 0;
  int64_t write_bytes_per_second = 0;
};

// How the transfers of a path share it, in bytes, while those of several kinds
// wait: 1 to 1000 each. A kind that waits alone has all of it.
struct IoWeights {
  int demand = 4;  // what a program waits for
  int prefetch = 1;
  int write_back = 1;
};

struct Options {
  // Memory, a GPU's, and what is below, each with its budget: the long form of
  // host_budget_bytes, numa_node and paths, which are not set beside it.
  //
  //   options.tiers = {*ParseTier("dram=8GiB"), *ParseTier("nvme:/mnt/a")};
  //
  // At least one is memory: each other one is of a node of its own. A queue
  // works in any of them, or on any device. A disk's budget is the largest size
  // of the job's file there: a tensor that has no room within it goes to the
  // next disk, and where none has any, Register is ResourceExhausted. The errno
  // that its message names is EDQUOT then, that of a full disk ENOSPC. What is
  // not there is refused, as terrace/tier.h says.
  std::vector<TierSpec> tiers;
  // An ordinary file may play persistent memory: for tests, as what is written
  // there does not outlive a power failure at that speed.
  bool unsafe_media = false;
  // Hard limit of the host arena: windows, residents and headers.
  int64_t host_budget_bytes = 0;
  // What Runtime::GrowMemory may add to it at most, or to the tier of memory:
  // addresses are reserved for that, and no memory is taken.
  int64_t host_growth_bytes = 0;
  // Existing and writable; none is ever made. Of a directory each job owns a
  // locked subdirectory. A regular file or a block device is given to Terrace:
  // one job at a time uses it, and it keeps a mark of 4 KiB. What is not empty
  // (a file) or not zero in its first and last MiB (a device) and has no such
  // mark is refused, never overwritten, and so is a device that is mounted. One
  // without the mark gets it back out if the job stores nothing there.
  // No paths: everything must fit the budget.
  std::vector<std::string> paths;
  // Instead of paths: that many memory-backed devices (benchmarks, tests).
  int memory_paths = 0;
  int64_t memory_path_bytes = 0;  // capacity of each

  EngineKind engine = EngineKind::kAuto;
  PaceOptions pace;
  // For kernels, checksums and copies; 0: one for each processor that the
  // process may use. Then, and for more, each is pinned to a processor. Fewer
  // are left to the kernel: two jobs of few threads would else share the same
  // processors.
  int threads = 0;
  // Instead of threads of its own, which `threads` says nothing of then: those
  // of the caller, which other runtimes may share.
  ThreadPool thread_pool;
  HugePages huge_pages = HugePages::kPreferred;
  // The memory node (of the operating system's numbers) that the whole arena
  // must lie on. Not set: the one that all processors that the process may
  // use are nearest to, as far as it has room; none where they are of several
  // or the machine has but one.
  std::optional<int> numa_node;
  EvictionKind eviction = EvictionKind::kNextUse;
  bool prefetch = true;
  // How long a device may leave a transfer unanswered: then it is
  // DeadlineExceeded and its buffer quarantined. Time behind our own transfers
  // does not count while the device answers these; a single request, of up to
  // 4 MiB, must be served within it. Of a daemon: how long it may say nothing,
  // and 4 s more for each GiB of the budget.
  absl::Duration io_timeout = absl::Seconds(60);
  IoWeights io_weights;
  // A file of `terrace tune`: the windows and speeds to begin with; what the
  // devices then do decides. Empty: none. One that cannot be read is an error;
  // one of another machine or other drives is told in Stats and not used.
  std::string machine_profile;

  // The socket of a host's daemon: Create is Runtime::Connect then.
  std::string daemon;
  // Beside a daemon, the name of the job that this process is of: its quota
  // holds, of its user's jobs. "": none of those that have a name.
  std::string job;
};

}  // namespace terrace
