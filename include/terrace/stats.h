// What a Runtime reports of itself. Plain values: a snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/tier.h"

namespace terrace {

// What a disk path, or another tier below memory, can be trusted with. Wherever
// it is not healthy, write-backs go to others as far as there are any; what
// lies on it is read as long as it can be, and moves away as it is written
// next.
enum class TierState : uint8_t {
  kHealthy,
  // Moves less than 0.6 of what it once held for some time, in a direction. It
  // gets that much less of the writes.
  kSlow,
  // Its last write failed, or its file does not grow: see write_error. One
  // write at each BeginStep or OpenQueue finds out whether it still does.
  kRefusesWrites,
  // Its last read failed for good. A tensor whose bytes are gone is DataLoss.
  // It is healthy again after a read that succeeds.
  kUnreadable,
};

// What has moved to and from a tier below memory.
struct TierTraffic {
  int64_t bytes_read = 0;  // that moved, headers and retries included
  int64_t bytes_written = 0;
  int64_t requests_read = 0;
  int64_t requests_written = 0;
  int64_t retries = 0;
  int64_t continuations = 0;  // short transfers that were continued
  // Measured while anything was under way in that direction, lately; as given
  // before anything was; 0: unknown.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
};

// Where a disk path keeps its bytes.
struct DiskStats {
  std::string directory;
  std::string file;              // the job's own file below it
  bool direct_io = false;        // false: buffered fallback
  std::string direct_io_reason;  // why not, if not
  // Directories of jobs that are left alone on the path, each with its owner,
  // since they may live on another host that has the file system.
  std::vector<std::string> jobs_elsewhere;
};

struct TierStats {
  std::string name;  // TierName: "dram", "dram:node1", "nvme:/mnt/nvme0"
  TierKind kind = TierKind::kDram;
  int64_t budget_bytes = 0;    // 0: all that there is
  int64_t capacity_bytes = 0;  // of a disk: preallocated
  int64_t used_bytes = 0;      // given to tensors and windows, headers included
  int64_t peak_bytes = 0;      // highest used_bytes so far
  // Of memory and a device's: tensors in place when asked for there, and
  // residents that were given up.
  int64_t hits = 0;
  int64_t evictions = 0;
  // Of what lies below memory.
  TierState state = TierState::kHealthy;
  bool degraded = false;     // kRefusesWrites
  absl::Status write_error;  // of the last write that failed; with its errno
  int64_t tensors = 0;       // that live there
  int64_t tensors_moved_in = 0;  // from other tiers, at a write-back
  // Of used_bytes, by what tensors have there, headers included: pinned or
  // held; else newer than what is below, or, below, older than what is in
  // memory; else the rest, also while it is on its way.
  int64_t pinned_bytes = 0;
  int64_t dirty_bytes = 0;
  int64_t clean_bytes = 0;
  TierTraffic traffic;
  DiskStats disk;  // of kDisk
};

// What moved from one tier to another, and how long customers waited for it.
struct LinkStats {
  std::string from;  // a tier's name
  std::string to;
  int64_t bytes = 0;  // headers and retries included
  // How long queues were held up by it, on the runtime's clock: from when one
  // had groups and held no pin until its next group was ready. All of it counts
  // at one link, by that group's Ready::cause: for a read the one that its last
  // tensor came over, for a write-back, or space that one made, the one down.
  // Waits for other customers' pins are no link's, nor are those of groups that
  // failed. Of several queues that wait at once each counts.
  double seconds_blocked = 0;
};

// Of all queues of bytes (terrace/byte_queue.h).
struct ByteQueueStats {
  int64_t promised_bytes = 0;  // windows of those that are open
  int64_t recalls = 0;         // pins that were asked for back
  int64_t keeps = 0;           // of those, in use when they were asked for
  // Groups that were had beyond the budget, and what they have there, headers
  // included: now, and at most at a time.
  int64_t groups_beyond = 0;
  int64_t beyond_bytes = 0;
  int64_t beyond_peak_bytes = 0;
};

// The first memory that a runtime has of the host.
struct HostStats {
  int64_t budget_bytes = 0;  // in whole blocks of 4 KiB
  // Taken from the machine for it. The rest a daemon has lent to other jobs.
  int64_t reserved_bytes = 0;
  int64_t used_bytes = 0;      // windows, residents, headers
  int64_t peak_bytes = 0;      // highest used_bytes so far
  double huge_page_share = 0;  // of the arena, as the kernel reports it
  int numa_node_asked = -1;    // by Options, or the nearest; -1: none
  int numa_node_found = -1;    // that the arena lies on; -1: several, unknown
  bool buffers_registered = false;
  int64_t quarantined_bytes = 0;  // buffers held by I/O past its deadline
  int64_t leaked_bytes = 0;       // an arena that Close had to leave behind
};

struct Stats {
  // Memories first, then devices, then what lies below, disk paths last; links
  // in the order of their tiers, out of memory before into it.
  std::vector<TierStats> tiers;
  std::vector<LinkStats> links;
  HostStats host;
  std::string engine;         // "io_uring" or "threads"; "memory": none
  std::string engine_reason;  // flags in force, or the errno that forced it
  // Of Options::machine_profile: "holds", or why it or a path of it does not.
  std::string machine_profile;
  int64_t window_bytes = 0;    // of open queues, in the first memory
  int64_t resident_bytes = 0;  // outside the windows, likewise
  ByteQueueStats bytes;
  // Messages that customers have sent to the mover until now. Uses that are
  // told while others have not been read yet join these.
  int64_t requests = 0;
  int64_t demand_reads = 0;      // tensors fetched because they were asked for
  int64_t prefetch_reads = 0;    // tensors fetched ahead of the request
  int64_t prefetch_hits = 0;     // of those, asked for since
  int64_t hits = 0;              // of all tiers
  int64_t evictions = 0;         // likewise
  int64_t late_completions = 0;  // paced devices: delivered > 1 ms late
  int64_t paced_completions = 0;
  absl::Status first_error;  // of any path since Create

  // The disk paths, in the order in which they were given.
  absl::Span<const TierStats> paths() const& {
    return absl::MakeConstSpan(tiers).subspan(first_path());
  }
  std::vector<TierStats> paths() && {
    const absl::Span<const TierStats> span = paths();
    return {span.begin(), span.end()};
  }

  // Up to memory, and down from it, over all links but a device's.
  int64_t bytes_read() const { return Moved(/*down=*/false); }
  int64_t bytes_written() const { return Moved(/*down=*/true); }

 private:
  size_t first_path() const {
    size_t first = tiers.size();
    while (first > 0 && tiers[first - 1].kind == TierKind::kDisk) --first;
    return first;
  }
  int64_t Moved(bool down) const {
    int64_t sum = 0;
    for (const LinkStats& link : links) {
      if (IsOfDevice(link)) continue;
      if ((link.from == tiers.front().name) == down) sum += link.bytes;
    }
    return sum;
  }
  bool IsOfDevice(const LinkStats& link) const {
    for (const TierStats& tier : tiers) {
      if (tier.kind == TierKind::kHbm &&
          (link.from == tier.name || link.to == tier.name)) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace terrace
