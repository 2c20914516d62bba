// What the disk and the memory under a run can do, so that its own rates can
// be given as shares. Each takes under two seconds.
#pragma once

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
// at once; at most what `pace` lets through.
absl::StatusOr<double> MeasureDiskBytesPerSecond(
    const std::vector<std::string>& directories,
    const terrace::PaceOptions& pace);

}  // namespace train_gpt
