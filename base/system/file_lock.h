// Claims that another process may still hold for a moment. Thread-safe.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "base/process.h"

namespace terrace {

// flock: exclusive, of the open file, gone with its last descriptor. Whether
// the lock was had; errno says why not. Does not wait.
bool TryLock(int fd);

// Waits for its holder, but no longer than `patience`.
bool LockWithin(int fd, absl::Duration patience);

// open(2), again while it is EBUSY, but no longer than `patience`.
OwnDescriptor OpenWithin(const std::string& path, int flags,
                         absl::Duration patience);

}  // namespace terrace
