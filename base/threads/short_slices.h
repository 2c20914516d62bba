// How soon a thread that woke up runs beside others that compute.
#pragma once

namespace terrace {

// This thread, and those that it starts later, asks the kernel for the shortest
// slices, 0.1 ms in place of a few: it runs sooner when it wakes, and has no
// more of the processors. For a thread that does little at a time, as one that
// hears of transfers. Needs no privilege; kernels before 6.12 have one length
// for all, and nothing changes. Nor does it where the process has another
// policy than to share.
void TakeShortSlices();

}  // namespace terrace
