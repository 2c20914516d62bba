// Calls of LibTorch's collectives, seen with what they return: a kernel of ours
// stands before each operator of c10d that returns a Work, for as long as the
// process lives. It pins what the call takes, calls the kernel behind it, and
// hands the pins over to the Work (collectives.h).
#pragma once

namespace terrace {

// Those that begin after this are seen; again: nothing. Thread-safe.
void ListenToCollectives();

}  // namespace terrace
