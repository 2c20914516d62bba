// What the kernel says of the medium below an open file, asked without any
// library: what a mapping is believed to persist is checked against it.
// Thread-safe, stateless.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace terrace {

// Unavailable: PMEM2_FORCE_* is set, or was when the process started. libpmem2
// then believes it, and what is written may never be flushed.
absl::Status CheckPmemEnvironment();

// As mountinfo names it, "ext4" or "tmpfs"; "devdax": a DAX device; "an unknown
// file system".
std::string FileSystemOf(int fd);

// Whether stores persist without the file system's help: 0, or the errno of a
// mapping with MAP_SYNC. `size_bytes` as the file or the device aligns them.
int TryMapSync(int fd, int64_t size_bytes);

// How far a store must get to survive a loss of power, of each region of
// persistent memory: "memory_controller" (caches are flushed by the stores'
// code), "cpu_cache" (they need not be). Each once; "unknown": none is named.
std::string PersistenceDomains();
// What it says where all do without flushes.
inline constexpr char kCachesPersist[] = "cpu_cache";

}  // namespace terrace
