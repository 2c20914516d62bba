"""What takes a tensor's memory without an operation of torch, while updates may
go on: Python's ways to it wait as an operation that writes it does, and what
torch.compile makes is preceded by the end of the updates.

An address or an array that was taken before step() shows what is there: the
parameter before its update, after it, or a part of each.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from terrace._base.library import await_updates


class Late(Protocol):
    """Whose updates may go on."""

    def flush(self) -> None: ...


_lock = threading.RLock()  # a finalizer may come within
_late: weakref.WeakSet[Late] = weakref.WeakSet()
_READERS = ('numpy', 'data_ptr', 'untyped_storage', '__dlpack__')
_MARK = '_terrace_waits'


def watch(late: Late) -> None:
    """Until forget(). Others that watch readers may have put back what was
    there before this: again before each step."""
    with _lock:
        _late.add(late)
        for name in _READERS:
            reader = getattr(torch.Tensor, name)
            if not hasattr(reader, _MARK):
                setattr(torch.Tensor, name, _waiting(reader))
        _hear_of_compiling()


def forget(late: Late) -> None:
    with _lock:
        _late.discard(late)


def is_compiled() -> bool:
    """Whether torch.compile has made something since it was last reset."""
    made = sys.modules.get('torch._dynamo.convert_frame')
    return made is not None and getattr(made, 'FRAME_COUNTER', 1) > 0


def _waiting(reader: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reader)
    def waits(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if _late:
            await_updates(self)
        return reader(self, *arguments, **named)
    setattr(waits, _MARK, True)
    return waits


def _hear_of_compiling() -> None:
    """What it makes while updates go on is run at once."""
    if 'torch._dynamo' not in sys.modules:
        return
    from torch._dynamo import callback
    handler = callback.callback_handler
    if _end_updates not in handler.start_callbacks:
        handler.register_start_callback(_end_updates)


def _end_updates(*_: Any) -> None:
    with _lock:
        all_late = list(_late)
    for late in all_late:
        late.flush()


def _forget_all() -> None:
    """In a forked child, which has the parameters as they were."""
    global _lock
    _lock = threading.RLock()  # its parent's may be held
    _late.clear()


os.register_at_fork(after_in_child=_forget_all)
