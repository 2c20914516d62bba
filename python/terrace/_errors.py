"""The library's statuses as Python's exceptions."""

from __future__ import annotations

import errno as errno_names
import os
import re
from collections.abc import Sequence


class DataLossError(OSError):
    """State on disk is gone or not what was written, and the memory above it
    holds no copy. The message names what was lost. The optimizer cannot go on;
    go back to the last checkpoint."""


class RankError(RuntimeError):
    """Another rank of the optimizer's process group failed, was killed, or did
    not come within the group's timeout.

    Attributes:
        rank: this process's, in the group.
        phase: what the ranks were doing.
        failed: the ranks that said they failed; the step can be repeated on
            all ranks where theirs can. Empty: a rank is gone, and with it its
            share of the state; close() works, the rest is in the last
            checkpoint.
    """

    def __init__(self, text: str, rank: int, phase: str,
                 failed: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.rank = rank
        self.phase = phase
        self.failed = tuple(failed)


# absl::StatusCode.
(_OK, _CANCELLED, _UNKNOWN, _INVALID_ARGUMENT, _DEADLINE_EXCEEDED, _NOT_FOUND,
 _ALREADY_EXISTS, _PERMISSION_DENIED, RESOURCE_EXHAUSTED, _FAILED_PRECONDITION,
 _ABORTED, _OUT_OF_RANGE, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _DATA_LOSS,
 _UNAUTHENTICATED) = range(17)

# "ENOSPC (No space left on device)", as the library writes an errno.
_ERRNO = re.compile(r'\b(E[A-Z0-9]+) \(')
_FILE = re.compile(r"(?:failed: |path ')([^,':]+)")

_PLAIN = {
    _INVALID_ARGUMENT: ValueError,
    _OUT_OF_RANGE: ValueError,
    _ALREADY_EXISTS: ValueError,
    _UNIMPLEMENTED: NotImplementedError,
    RESOURCE_EXHAUSTED: MemoryError,
}


def _errno_of(message: str) -> int | None:
    for name in _ERRNO.findall(message):
        number = getattr(errno_names, name, None)
        if number is not None:
            return number
    return None


def _path_of(message: str, paths: Sequence[str]) -> str | None:
    match = _FILE.search(message)
    if match:
        return match[1]
    return next((path for path in paths if path in message), None)


def exception_of(code: int, message: str,
                 paths: Sequence[str] = ()) -> Exception:
    """The exception for a status that is not OK.

    What a system call answered becomes an OSError of the subclass that Python
    has for its errno, with `errno` and `filename`; a lack of memory
    MemoryError; a bad argument ValueError; the wrong moment RuntimeError.
    """
    text = f'terrace: {message}'
    number = _errno_of(message)
    path = _path_of(message, paths)
    if code == _DATA_LOSS:
        return DataLossError(number or errno_names.EIO, text, path)
    if code == _NOT_FOUND:
        number = number or errno_names.ENOENT
    elif code == _PERMISSION_DENIED:
        number = number or errno_names.EACCES
    elif code == _DEADLINE_EXCEEDED:
        return TimeoutError(errno_names.ETIMEDOUT, text, path)
    if number == errno_names.ENOMEM:
        return MemoryError(text)
    if number is not None:
        return OSError(number, text, path)
    return _PLAIN.get(code, RuntimeError)(text)


def check(outcome: tuple[int, str], paths: Sequence[str] = ()) -> None:
    """Raises what an Outcome of the library says; returns if it is OK."""
    code, message = outcome
    if code != _OK:
        raise exception_of(code, message, paths)


def has_no_master(outcome: tuple[int, str]) -> bool:
    """Of reading the master of a parameter before a step made it."""
    code, message = outcome
    return code == _FAILED_PRECONDITION and 'has no master' in message


def check_directories(paths: Sequence[str]) -> None:
    """Each path is a directory that can be written; it is never made."""
    for path in paths:
        if not path:
            raise ValueError('terrace: nvme_path has an empty path')
        if not os.path.exists(path):
            raise FileNotFoundError(
                errno_names.ENOENT, 'terrace: nvme_path does not exist (it is '
                'never made)', path)
        if not os.path.isdir(path):
            raise NotADirectoryError(
                errno_names.ENOTDIR, 'terrace: nvme_path is no directory', path)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(
                errno_names.EACCES, 'terrace: nvme_path cannot be written',
                path)
