// The edge between DRAM and a disk, for `terrace-bench tiers`: a Disk
// transport's moves, as a Runtime sets its queue up, and the least that moves
// the same bytes of the same nameless file, as `terrace-bench io` has it: 4 MiB
// a request, two of them in flight.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aio/io_paths.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "bench/rounds.h"
#include "bench/tier_copies.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {

class DiskEdge {
 public:
  // In a directory; at least 16 MiB, rounded down to a multiple.
  static absl::StatusOr<std::unique_ptr<DiskEdge>> Make(
      const std::string& directory, int64_t size_bytes);

  absl::StatusOr<Sample> RunTransport(Way way);
  absl::StatusOr<Sample> RunLoop(Way way);

  int64_t size_bytes() const { return file_->size_bytes(); }
  const char* loop_name() const {
    return loop_ != nullptr ? "raw io_uring" : "raw pread/pwrite";
  }

 private:
  DiskEdge() = default;

  std::unique_ptr<HostArena> dram_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<IoPaths> io_;
  std::unique_ptr<UringRawLoop> loop_;  // null: no io_uring here
};

}  // namespace terrace::bench
