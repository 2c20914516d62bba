// That a process gives memory back which it has freed.
#pragma once

namespace terrace {

// From here on, and for good, malloc has each block of 1 MiB and more from the
// system and returns it when it is freed. Without this, glibc keeps blocks of
// up to 32 MiB once one of that size was freed (mallopt(3),
// M_MMAP_THRESHOLD): gradients and activations that come and go, of several
// sizes, leave as much again behind. Does nothing where the environment sets
// that threshold, nor beside another malloc. Any thread.
void ReturnFreedBlocks();

}  // namespace terrace
