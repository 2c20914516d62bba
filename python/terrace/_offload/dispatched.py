"""What torch runs past its dispatcher takes tensors that nothing brings, and
nobody learns which of them it writes. While a model is offloaded it goes the
ordinary way:

- what is compiled runs eagerly.
- operators that torch.library.custom_op has made, which are called past the
  dispatcher from 2.15 on, are called through it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import torch
from torch._ops import OpOverload

from terrace._base.message import say
from terrace._state.late_readers import is_compiled

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_ways = contextlib.ExitStack()
_told = False


def begin() -> None:
    """Of one model; each is ended once."""
    global _count
    with _lock:
        _count += 1
        if _count > 1:
            return
        if is_compiled():
            _tell_once()
        _watch()
        if hasattr(OpOverload, '_enable_pyobj_dispatch'):
            _watch_operators()
        _ways.enter_context(torch.compiler.set_stance('force_eager'))


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _ways.close()


def _watch() -> None:
    original = torch.compile

    @functools.wraps(original)
    def compile(*arguments: Any, **named: Any) -> Any:
        _tell_once()
        return original(*arguments, **named)

    def restore() -> None:
        if torch.compile is compile:
            torch.compile = original

    torch.compile = compile
    _ways.callback(restore)


def _watch_operators() -> None:
    original = OpOverload.__call__

    @functools.wraps(original)
    def call(self: OpOverload, /, *arguments: Any, **named: Any) -> Any:
        return self._cpp_dispatch_handle(*arguments, **named)

    def restore() -> None:
        if OpOverload.__call__ is call:
            OpOverload.__call__ = original

    OpOverload.__call__ = call
    _ways.callback(restore)


def _tell_once() -> None:
    global _told
    if not _told:
        _told = True
        say('while a model is offloaded, what torch.compile has made, or '
            'makes, runs eagerly: nothing would bring the tensors that it '
            'reads')
