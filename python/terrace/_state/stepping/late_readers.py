"""What takes a tensor's memory without an operation of torch, while updates may
go on, waits as an operation that writes it does, and what torch.compile makes
is preceded by the end of the updates.

An address or an array that was taken before step() shows what is there: the
parameter before its update, after it, or a part of each.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import Any, Protocol

import torch

from terrace._base import raw_readers
from terrace._base.library import await_all_updates, await_updates


class Late(Protocol):
    """Whose updates may go on."""

    def flush(self) -> None: ...


class _Waiting:
    """A keeper of raw_readers: of all parameters and gradients."""

    def wait(self, tensor: torch.Tensor) -> None:
        if _late:
            await_updates(tensor)

    def hold(self, tensor: torch.Tensor, write: bool,
             held: contextlib.ExitStack) -> None:
        """No update begins before the next step()."""


_lock = raw_readers.keepers.lock
_late: weakref.WeakSet[Late] = weakref.WeakSet()
_waiting = _Waiting()


def watch(late: Late) -> None:
    """Until forget(), or its end."""
    with _lock:
        if late not in _late:
            _late.add(late)
            weakref.finalize(late, _end_if_none).atexit = False
        raw_readers.keepers.begin(_waiting)
        _hear_of_compiling()


def forget(late: Late) -> None:
    with _lock:
        _late.discard(late)
        _end_if_none()


def _end_if_none() -> None:
    with _lock:
        if not list(_late):
            raw_readers.keepers.end(_waiting)
            _hear_no_more()


def is_compiled() -> bool:
    """Whether torch.compile has made something since it was last reset."""
    made = sys.modules.get('torch._dynamo.convert_frame')
    return made is not None and getattr(made, 'FRAME_COUNTER', 1) > 0


def _hear_of_compiling() -> None:
    """What it makes while updates go on is run at once."""
    if 'torch._dynamo' not in sys.modules:
        return
    from torch._dynamo import callback
    handler = callback.callback_handler
    if _end_updates not in handler.start_callbacks:
        handler.register_start_callback(_end_updates)


def _hear_no_more() -> None:
    heard = sys.modules.get('torch._dynamo.callback')
    if heard is None:
        return
    handler = heard.callback_handler
    if _end_updates in handler.start_callbacks:
        handler.remove_start_callback(_end_updates)


def _end_updates(*_: Any) -> None:
    with _lock:
        all_late = list(_late)
    for late in all_late:
        late.flush()


def _await_all() -> None:
    """Before a fork, while Python's lock may still be given up: an update may
    need it to end."""
    if list(_late):
        await_all_updates()


def _forget_all() -> None:
    """In a forked child, which has the parameters as they were."""
    _late.clear()
    _end_if_none()


os.register_at_fork(before=_await_all, after_in_child=_forget_all)
