// How a stream's thread runs LibTorch's CPU kernels: below autograd, seen by no
// observer, and by one thread each, as the process's own number of threads
// stays what it is.
#pragma once

#include "tests/support/accelerator/task_queues.h"

namespace terrace {

void RunStreamThread(const TaskQueues::Task& life);

}  // namespace terrace
