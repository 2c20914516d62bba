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
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from terrace._base.message import say
from terrace._base.replaced import Replaced
from terrace._state.late_readers import is_compiled

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_replaced = Replaced()
_eagerly = contextlib.ExitStack()
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
        _replaced.put(torch, 'compile', _telling)
        if hasattr(OpOverload, '_enable_pyobj_dispatch'):
            _replaced.put(OpOverload, '__call__', lambda _: _dispatch)
        _eagerly.enter_context(torch.compiler.set_stance('force_eager'))


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _eagerly.close()
            _replaced.restore()


def _telling(compile: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile)
    def tells(*arguments: Any, **named: Any) -> Any:
        if _count:
            _tell_once()
        return compile(*arguments, **named)
    return tells


def _dispatch(operator: OpOverload, /, *arguments: Any, **named: Any) -> Any:
    return operator._cpp_dispatch_handle(*arguments, **named)


def _tell_once() -> None:
    global _told
    if not _told:
        _told = True
        say('while a model is offloaded, what torch.compile has made, or '
            'makes, runs eagerly: nothing would bring the tensors that it '
            'reads')
