"""Operators that a program made with torch.library.custom_op, while a model is
offloaded.

From 2.15 on torch calls them past its dispatcher, where nothing would bring the
tensors that they take, nor learn which they write. So they go through it, as
they did before.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

from torch._ops import OpOverload

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_watch = contextlib.ExitStack()


def begin() -> None:
    """Of one model; each is ended once."""
    global _count
    with _lock:
        _count += 1
        if _count == 1 and hasattr(OpOverload, '_enable_pyobj_dispatch'):
            _begin_watch()


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _watch.close()


def _begin_watch() -> None:
    original = OpOverload.__call__

    @functools.wraps(original)
    def call(self: OpOverload, /, *arguments: Any, **named: Any) -> Any:
        if self._pyobj_dispatcher is None:
            return original(self, *arguments, **named)
        return self._cpp_dispatch_handle(*arguments, **named)

    def restore() -> None:
        if OpOverload.__call__ is call:
            OpOverload.__call__ = original

    OpOverload.__call__ = call
    _watch.callback(restore)
