"""Files that are read: no pipe is waited for, no device is read to no end."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def descriptor_of(path: str) -> Iterator[int]:
    """To read from. Raises OSError with errno and filename; ValueError: it is
    a folder, a pipe, a socket or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # of a socket
            raise ValueError(f'terrace: {path} is no regular file') from None
        raise OSError(error.errno, f'terrace: {error.strerror}',
                      path) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f'terrace: {path} is no regular file')
        yield descriptor
    finally:
        os.close(descriptor)


def start_of(path: str, most: int) -> bytes:
    """At most so many bytes from its start on."""
    with descriptor_of(path) as descriptor:
        return read(descriptor, most)


def read(descriptor: int, most: int) -> bytes:
    """From where the descriptor is; less at the end. What is read takes
    memory, and not what could be."""
    size = os.fstat(descriptor).st_size
    with open(descriptor, 'rb', closefd=False) as file:
        return file.read(min(most, size))
