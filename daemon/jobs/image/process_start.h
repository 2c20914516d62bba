// What tells a process from another that has its number later. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace terrace {

// Of that process alone since the machine's start: the kernel's own number of
// it, or else when it began. Nullopt: there is no such process, or nothing is
// to be known of it.
std::optional<uint64_t> StartOf(pid_t process);

}  // namespace terrace
