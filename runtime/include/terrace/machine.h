// What the machine has left, so that a job can refuse before it starts.
//
//   if (*FreeDiskBytes("/mnt/nvme0") < state_bytes) { ... }
//
// Snapshots: others use the same machine. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace terrace {

// Bytes that an ordinary user may still write to the file system of this
// directory. NotFound: it does not exist; InvalidArgument: it is no
// directory; PermissionDenied: it cannot be reached.
absl::StatusOr<int64_t> FreeDiskBytes(const std::string& directory);

// Bytes that this process can still use without pushing others out: what the
// kernel calls available, cut to what the limits of its control groups leave.
// INT64_MAX where the kernel says nothing.
int64_t AvailableMemoryBytes();

}  // namespace terrace
