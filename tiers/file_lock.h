// flock by name: exclusive, of the open file, gone with its last descriptor.
#pragma once

#include "absl/time/time.h"

namespace terrace {

// Whether the lock was had; errno says why not. Does not wait.
bool TryLock(int fd);

// Waits for whoever has it, but no longer than `patience`.
bool LockWithin(int fd, absl::Duration patience);

}  // namespace terrace
