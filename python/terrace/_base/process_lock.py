"""A lock that lives as long as its module, and what os.fork() makes of it."""

from __future__ import annotations

import os
import threading
from typing import Any

_LONGEST_WAIT = 1.0  # seconds, for what holds it: a fork does not hang


class ProcessLock:
    """Of one thread at a time, as often as it likes: a finalizer may come
    within. A fork waits for who holds it, so that a child finds whole what it
    guards. A child has it where its thread had it, and no other's."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forking = threading.local()
        os.register_at_fork(before=self._before_fork,
                            after_in_parent=self._in_parent,
                            after_in_child=self._in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def _before_fork(self) -> None:
        self._forking.has_it = self._lock.acquire(timeout=_LONGEST_WAIT)

    def _in_parent(self) -> None:
        if self._forking.has_it:
            self._lock.release()

    def _in_child(self) -> None:
        if self._forking.has_it:
            self._lock.release()
        else:  # a thread has it that is not here
            self._lock = threading.RLock()
