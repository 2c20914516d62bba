// What the disk and the memory under a run can do, so that its own rates can
// be given as shares. Each takes under two seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "terrace/options.h"

namespace train_gpt {

// Bytes a second of a triad (two streams read, one written) on so many
// threads: the best of a few passes.
double MeasureMemoryBytesPerSecond(int threads);

// Bytes a second, reads and writes together, of a bare loop of large direct
// transfers (half of them reads) on nameless files in all these directories
// at once; in each direction at most what `pace` lets through. 0 of none.
absl::StatusOr<double> MeasureDiskBytesPerSecond(
    const std::vector<std::string>& directories,
    const terrace::PaceOptions& pace);

// Bytes a second of so many paths, each of them paced by itself. 0 in `pace`:
// that direction goes as it is.
double PacedBytesPerSecond(double read, double written,
                           const terrace::PaceOptions& pace, int64_t paths);

// An empty file in the directory that is gone when the caller closes it;
// direct where that can be had. What asks for any of `unknown_flags` (of
// open(2)) is refused as by a file system that does not know them, so that
// each step down can be tried.
absl::StatusOr<int> OpenProbeFile(const std::string& directory,
                                  int unknown_flags = 0);

}  // namespace train_gpt
