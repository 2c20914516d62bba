// Another process: whether it lives still, and what tells it from one that has
// its number later. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "base/process.h"

namespace terrace {

// A pidfd of a process that this one does not wait for. None: it has gone; or
// else ResourceExhausted.
absl::StatusOr<OwnDescriptor> OpenProcess(pid_t process);
// Of one that OpenProcess has given.
bool HasGone(const OwnDescriptor& process);

// Of that process alone since the machine's start: the kernel's own number of
// it, or else when it began. Nullopt: there is no such process, or nothing is
// to be known of it.
std::optional<uint64_t> StartOf(pid_t process);

}  // namespace terrace
