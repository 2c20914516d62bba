// What the sections of `terrace-bench io` share: the settings, the memory, and
// one function for each section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aio/io_paths.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/report/document.h"

namespace terrace::bench {

struct IoBench {
  std::vector<std::string> directories;
  int64_t size_bytes = 0;  // of a file, and of a pass over it
  int rounds = 0;
  int samples = 0;  // of demand reads, at least
  EngineKind engine = EngineKind::kAuto;
  bool has_fio = false;          // asked for
  IoQueueOptions queue;          // what a Runtime would take
  absl::Span<std::byte> bulk;    // 256 MiB
  absl::Span<std::byte> demand;  // of one demand read
  Gate* gate = nullptr;
};

// Reads, writes and both at once through the queue over each engine, beside
// raw loops in the same process; processor time beside libaio; fio.
absl::StatusOr<std::vector<Section>> MeasureEngines(const IoBench& bench);

// Bandwidth and processor time over piece and bytes in flight.
absl::StatusOr<Section> MeasureSizes(const IoBench& bench);

// A 1 MiB demand read beside 1 GiB of reads and 1 GiB of writes, on a device
// in memory paced at `bytes_per_second` each way.
absl::StatusOr<Section> MeasureDemand(const IoBench& bench,
                                      int64_t bytes_per_second);

// Several files at once, each a path of one queue.
absl::StatusOr<Section> MeasurePaths(const IoBench& bench);

// Writes into files in every state that a file can be in.
absl::StatusOr<Section> MeasureStates(const IoBench& bench);

// Options of a fixed window.
IoQueueOptions Fixed(int64_t piece_bytes, int64_t in_flight_bytes);

// "1 MiB x 8".
std::string Shape(int64_t piece_bytes, int64_t in_flight_bytes);

}  // namespace terrace::bench
