"""Memory for a raw loop that reads or writes past the page cache.

It is of huge pages, as the arena's is, and as large as what ours moves through:
a loop with less of either is no yardstick. A buffer of small pages is cut into
more segments than one request takes, and had less than half of a virtual disk's
rate; one that stays in the processor's cache had a quarter more of it than the
memory that a model's weights go through.
"""

import ctypes
import mmap
import os
import queue
from collections.abc import Callable

_HUGE_PAGE = 2 << 20


class RawBuffers:
    """Buffers of `piece_bytes`, whole 64 KiB each, which take turns: as many as
    `memory_bytes` hold, and at least `least`."""

    def __init__(self, memory_bytes: int, piece_bytes: int,
                 least: int = 1) -> None:
        self._piece_bytes = piece_bytes
        count = max(least, memory_bytes // piece_bytes)
        memory = mmap.mmap(-1, count * piece_bytes + 2 * _HUGE_PAGE,
                           mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        begin = -address % _HUGE_PAGE
        some = os.urandom(1 << 16)
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for place in range(begin, begin + count * piece_bytes, piece_bytes):
            buffer = memoryview(memory)[place:place + piece_bytes]
            buffer[:] = some * (piece_bytes >> 16)
            self._free.put(buffer)

    def move(self, call: Callable, file: int, offset: int) -> None:
        """os.preadv or os.pwritev of one piece, with the buffer that has been
        free for longest; waits for one. Any thread. OSError: a short transfer.
        """
        buffer = self._free.get()
        try:
            if call(file, [buffer], offset) != self._piece_bytes:
                raise OSError(f'a short transfer at {offset}')
        finally:
            self._free.put(buffer)
