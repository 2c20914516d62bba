"""What torch runs past its dispatcher takes tensors that nothing brings, and
nobody learns which of them it writes. While a model is offloaded it goes the
ordinary way:

- what is compiled runs eagerly.
- operators that torch.library.custom_op has made, which are called past the
  dispatcher from 2.15 on, are called through it.
"""

from __future__ import annotations

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
_models: list[object] = []  # one a model
_replaced = Replaced()
_told = False


def begin(model: object) -> None:
    """Until end() of the same."""
    with _lock:
        _models.append(model)
        if len(_models) > 1:
            return
        if is_compiled():
            _tell_once()
        _replaced.put(torch, 'compile', _telling)
        if hasattr(OpOverload, '_enable_pyobj_dispatch'):
            _replaced.put(OpOverload, '__call__', lambda _: _dispatch)
        # Not a stance: the program has stances of its own, which end in any
        # order.
        from torch._dynamo import eval_frame  # takes seconds
        _replaced.put(eval_frame, '_callback_from_stance', _eagerly)


def end(model: object) -> None:
    """Again: nothing."""
    with _lock:
        if model not in _models:
            return
        _models.remove(model)
        if not _models:
            _replaced.restore()


def _eagerly(callback_from_stance: Callable[..., Any]) -> Callable[..., Any]:
    """What torch asks as it enters or leaves what was compiled: how it
    compiles, and whether."""
    @functools.wraps(callback_from_stance)
    def callback(compiling: Any) -> Any:
        return None if _models else callback_from_stance(compiling)
    return callback


def _telling(compile: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile)
    def tells(*arguments: Any, **named: Any) -> Any:
        if _models:
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
