"""A file that takes another's place when it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO

# terrace-export-BOOT-RANDOM.new, of the machine's boot: a lock says only there
# whether the writer lives. Without locks BOOT is left out.
_PREFIX = 'terrace-export-'
_SUFFIX = '.new'
_BOOT = '/proc/sys/kernel/random/boot_id'
_TRIES = 100


class NewFile:
    """Beside the one that it is to replace, under a name that nobody else has,
    and locked while it is written. Leaving the `with` without replace()
    removes it; one that a killed process left is removed by the next that is
    made there.

    Of a link it replaces what the link leads to. The new file has the mode of
    the old one and, where the system lets it, the owner; without an old one it
    has what the process gives to new files.

    Attributes:
        file: to be written.
        path: of the new file, until it is put in place.
    """

    def __init__(self, target: str) -> None:
        """OSError: it cannot be made. ValueError: what is there is no file."""
        _check_kind(target)
        real = os.path.realpath(target)
        self._name = os.path.basename(real)
        folder = os.path.dirname(real)
        with contextlib.ExitStack() as undo:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY |
                                   os.O_CLOEXEC)
            undo.callback(os.close, self._folder)
            self._old = self._look()
            boot = _boot_id()
            if boot is not None:
                _remove_leftovers(self._folder, boot)
            descriptor, self._new = self._made(boot)
            undo.callback(self._remove)
            self.path = os.path.join(folder, self._new)
            self.file: BinaryIO = os.fdopen(descriptor, 'wb')
            self._undo = undo.pop_all()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        with self._undo:
            # After an error there may be bytes that cannot be written.
            with contextlib.suppress(OSError):
                self.file.close()

    def flush(self) -> int:
        """Onto the disk; its bytes."""
        self.file.flush()
        if self._old is not None:
            with contextlib.suppress(OSError):
                os.fchown(self.file.fileno(), self._old.st_uid,
                          self._old.st_gid)
            os.fchmod(self.file.fileno(), stat.S_IMODE(self._old.st_mode))
        os.fsync(self.file.fileno())
        return self.file.tell()

    def replace(self) -> None:
        """Once, after flush(): it is the other file from now on. OSError: it
        is not, or the message says that it is there."""
        os.replace(self._new, self._name, src_dir_fd=self._folder,
                   dst_dir_fd=self._folder)
        self._new = ''
        try:
            os.fsync(self._folder)
        except OSError as error:
            raise OSError(
                error.errno, 'the new file is there, but its directory '
                f'could not be flushed: {error.strerror}') from error

    def _look(self) -> os.stat_result | None:
        try:
            return os.stat(self._name or '.', dir_fd=self._folder)
        except FileNotFoundError:
            return None

    def _made(self, boot: str | None) -> tuple[int, str]:
        """Not to be read by those that may not read the old one."""
        mode = 0o666 if self._old is None else 0o600
        for _ in range(_TRIES):
            name = (_PREFIX + ('' if boot is None else f'{boot}-')
                    + os.urandom(8).hex() + _SUFFIX)
            descriptor = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW |
                os.O_CLOEXEC, mode, dir_fd=self._folder)
            if boot is None:
                return descriptor, name
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink > 0:
                    return descriptor, name
            except BlockingIOError:
                pass  # another took it for a leftover before it was locked
            except OSError:  # no locks here
                os.unlink(name, dir_fd=self._folder)
                boot = None
            os.close(descriptor)
        raise OSError(errno.EAGAIN, 'each new file was taken away')

    def _remove(self) -> None:
        if self._new:
            with contextlib.suppress(OSError):
                os.unlink(self._new, dir_fd=self._folder)


def _check_kind(target: str) -> None:
    """Of what is there: a pipe of standard output has no folder."""
    try:
        mode = os.stat(target or os.curdir).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise ValueError(f'terrace: {target} is no regular file and is not '
                         'replaced')


def _boot_id() -> str | None:
    try:
        with open(_BOOT, encoding='ascii') as text:
            return text.read().strip().replace('-', '')
    except OSError:
        return None


def _remove_leftovers(folder: int, boot: str) -> None:
    """Files of this user's that a process of this boot made and does not hold
    any more. What cannot be removed stays."""
    pattern = re.compile(f'{_PREFIX}{boot}-[0-9a-f]{{16}}{re.escape(_SUFFIX)}')
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError), _held(folder, name):
                os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _held(folder: int, name: str) -> Iterator[None]:
    """Locked, so that nobody else has it. OSError: somebody does, or it is no
    file of this user's."""
    descriptor = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW |
                         os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own = os.fstat(descriptor)
        if (not stat.S_ISREG(own.st_mode) or own.st_uid != os.geteuid()
                or not os.path.samestat(own, os.stat(
                    name, dir_fd=folder, follow_symlinks=False))):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        yield
    finally:
        os.close(descriptor)
