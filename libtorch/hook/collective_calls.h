// The hook sees the calls of LibTorch's collectives: a kernel of ours stands
// before each operator of c10d that returns a Work, for as long as the process
// lives. The kernel pins the storages that the call takes, calls the kernel
// behind it, and hands the pins over to the Work (collectives.h).
#pragma once

namespace terrace {

// Collectives that begin after the first call are seen; later calls do nothing.
// The function is thread-safe.
void ListenToCollectives();

}  // namespace terrace
