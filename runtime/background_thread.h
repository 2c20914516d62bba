// An executor for calls that the kernel may keep for ever: growing a file,
// removing one. One thread, first in, first out. One of these per disk path,
// so that a disk that hangs holds up no other path.
//
// The destructor waits a moment for what is queued. What still runs then is
// left behind on purpose, thread and queue with it: tasks must own what they
// use. Run is thread-safe.
#pragma once

#include <memory>

#include "base/executor.h"

namespace terrace {

// Throws std::system_error where no thread can be had.
std::unique_ptr<Executor> MakeBackgroundThread();

}  // namespace terrace
