// Has a process give memory that it has freed back to the system.
#pragma once

namespace terrace {

// From here on, and for good, malloc has each block of 1 MiB and more from the
// system and returns it when it is freed. Without this, glibc keeps blocks of
// up to 32 MiB once one of that size was freed (mallopt(3),
// M_MMAP_THRESHOLD): gradients and activations that come and go, of several
// sizes, leave as much again behind. Does nothing where the environment sets
// that threshold, nor beside another malloc. Any thread may call it.
void ReturnFreedBlocks();

// Returns the free pages that malloc holds now, those between blocks in use as
// well, by a pass over its free blocks. glibc before 2.38 makes no aligned
// block of a freed one of the same size, so that memory which is taken and
// freed part by part would stay with malloc. Does nothing beside another
// malloc. Any thread may call it.
void ReturnFreePages();

}  // namespace terrace
