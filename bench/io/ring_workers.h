// Whether io_uring handed I/O to its worker threads ("punts"), found without
// privileges: a punt leaves a thread of this name in the process for seconds.
#pragma once

namespace terrace {

// Threads iou-wrk-* of this process now.
int CountRingWorkers();

}  // namespace terrace
