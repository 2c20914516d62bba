"""Memory for a raw loop that reads or writes past the page cache.

It is of huge pages, as the arena's is. A buffer of small pages is cut into more
segments than one request takes: on a virtual disk reads into such ones had less
than half the rate, and a loop beside ours that has them is no yardstick.
"""

import ctypes
import mmap

_HUGE_PAGE = 2 << 20


def raw_buffer(size: int) -> memoryview:
    """Of `size` bytes of its own, which begins where a huge page does."""
    memory = mmap.mmap(-1, size + 2 * _HUGE_PAGE,
                       mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
    return memoryview(memory)[begin:begin + size]
