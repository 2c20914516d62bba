// Claims that another process may still hold for a moment. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/time/time.h"
#include "base/process.h"

namespace terrace {

// flock: exclusive, of the open file, gone with its last descriptor. Whether
// the lock was had; errno says why not. Does not wait.
bool TryLock(int fd);

// Waits for its holder, but no longer than `patience`.
bool LockWithin(int fd, absl::Duration patience);

// Does not wait, but for a holder that is killed and not gone yet, as a disk
// has still to end what it had begun: for that 30 s at most.
bool LockOnceEnded(int fd);

// The process that has locked the file; 0: there is none, or it is not told.
pid_t LockHolder(int fd);

// open(2), again while it is EBUSY, but no longer than `patience`.
OwnDescriptor OpenWithin(const std::string& path, int flags,
                         absl::Duration patience);

}  // namespace terrace
