// A raw loop beside a step on a disk: reads of one half of a file that was
// written before, writes of the other, and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/io/io_load.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {

class RawHalves {
 public:
  // As many bytes of each half, in pieces of 4 MiB, two of them in flight,
  // through as much memory, but at least that of these.
  static absl::StatusOr<std::unique_ptr<RawHalves>> Make(
      const std::string& directory, int64_t half_bytes, int64_t memory_bytes);

  // Moves both halves once; how many bytes that was.
  absl::StatusOr<int64_t> Run();

  const char* name() const {
    return loop_ != nullptr ? "raw io_uring" : "raw pread/pwrite";
  }
  int64_t footprint() const { return load_.footprint; }

 private:
  RawHalves() = default;

  Load load_;
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<UringRawLoop> loop_;
};

}  // namespace terrace::bench
