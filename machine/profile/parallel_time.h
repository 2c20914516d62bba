// How long work takes on all of an executor's threads together.
#pragma once

#include <functional>

#include "base/executor.h"

namespace terrace {

// Runs work(0) to work(parallelism - 1), at the same time as far as the threads
// are free, and returns how many seconds the slowest took together. Blocks; any
// thread but the executor's.
double TimeOnAll(Executor& executor, const std::function<void(int)>& work);

}  // namespace terrace
