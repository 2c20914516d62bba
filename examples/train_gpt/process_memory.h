// What Linux says about this process and its machine, from /proc.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace train_gpt {

// The most memory the process has had at once, in bytes (VmHWM).
absl::StatusOr<int64_t> PeakResidentBytes();

// What can be had without swapping (MemAvailable), in bytes.
absl::StatusOr<int64_t> AvailableMemoryBytes();

// Free bytes of the file system that holds `path`.
absl::StatusOr<int64_t> FreeDiskBytes(const std::string& path);

}  // namespace train_gpt
