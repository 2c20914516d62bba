"""The library's statuses as Python's exceptions."""

from __future__ import annotations

import errno as errno_names
import os
import re
from collections.abc import Sequence


# What torch says in RuntimeErrors where Python has MemoryError.
_NO_ROOM = re.compile('allocate memory|not enough memory|bad_alloc')


def is_no_room(error: BaseException) -> bool:
    """Whether memory has no room, whichever library says so."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and _NO_ROOM.search(str(error)) is not None)


class DataLossError(OSError):
    """State on disk is gone or not what was written, and the memory above it
    holds no copy. The message names what was lost. The optimizer cannot go on;
    go back to the last checkpoint.

    Attributes:
        errno: of the system's answer, EIO if there was none.
        filename, offset: where, in bytes; None if that is not known.
    """

    offset: int | None = None


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
 ABORTED, _OUT_OF_RANGE, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _DATA_LOSS,
 _UNAUTHENTICATED) = range(17)

# What the library's methods answer: a code, a message, and of what the system
# refused the errno (0: nothing), the path ('': none) and the offset (-1: none).
Outcome = tuple[int, str, int, str, int]
DONE: Outcome = (_OK, '', 0, '', -1)


def answer(message: str) -> Outcome:
    """Of a success that says something."""
    return (_OK, message, *DONE[2:])


_PLAIN = {
    _INVALID_ARGUMENT: ValueError,
    _OUT_OF_RANGE: ValueError,
    _ALREADY_EXISTS: ValueError,
    _UNIMPLEMENTED: NotImplementedError,
    RESOURCE_EXHAUSTED: MemoryError,
}


# Where the errno is not known, the code says it.
_ERRNO = {
    _DATA_LOSS: errno_names.EIO,
    _NOT_FOUND: errno_names.ENOENT,
    _PERMISSION_DENIED: errno_names.EACCES,
    _DEADLINE_EXCEEDED: errno_names.ETIMEDOUT,
}


def exception_of(outcome: Outcome) -> Exception:
    """The exception for a status that is not OK.

    What a system call answered becomes an OSError of the subclass that Python
    has for its errno, with `errno`, `filename` and `offset`, in bytes (each
    None where it is not known); a lack of memory MemoryError; a bad argument
    ValueError; the wrong moment RuntimeError.
    """
    code, message, number, path, offset = outcome
    text = (message if message.startswith('terrace: ')
            else f'terrace: {message}')
    number = number or _ERRNO.get(code, 0)
    if number == errno_names.ENOMEM:
        return MemoryError(text)
    if number == 0:
        return _PLAIN.get(code, RuntimeError)(text)
    kind = {_DATA_LOSS: DataLossError,
            _DEADLINE_EXCEEDED: TimeoutError}.get(code, OSError)
    error = kind(number, text, path or None)
    error.offset = None if offset < 0 else offset
    return error


def check(outcome: Outcome) -> None:
    """Raises what an Outcome says; returns if it is OK."""
    if outcome[0] != _OK:
        raise exception_of(outcome)


def is_data_loss(outcome: Outcome) -> bool:
    return outcome[0] == _DATA_LOSS


def has_no_master(outcome: Outcome) -> bool:
    """Of reading the master of a parameter before a step made it."""
    return outcome[0] == _FAILED_PRECONDITION and 'has no master' in outcome[1]
