// What the machine has left, so that a job can refuse before it starts, and
// what of its processor is used, so that a report can name it.
//
//   if (*FreeDiskBytes("/mnt/nvme0") < state_bytes) { ... }
//
// What is left is a snapshot: others use the same machine. Thread-safe.
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

// The instruction set that the kernels use: "AVX-512", "AVX2", "NEON" or
// "scalar". The widest that this processor has; results do not depend on it,
// speed does.
std::string InstructionSetName();

}  // namespace terrace
