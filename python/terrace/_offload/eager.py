"""What is compiled reads its tensors' memory without an operation that could
bring it, so all runs eagerly while a model is offloaded."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import torch

from terrace._base.message import say
from terrace._state.late_readers import is_compiled

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_stance = contextlib.ExitStack()
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
        _stance.enter_context(torch.compiler.set_stance('force_eager'))


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _stance.close()


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
    _stance.callback(restore)


def _tell_once() -> None:
    global _told
    if not _told:
        _told = True
        say('while a model is offloaded, what torch.compile has made, or '
            'makes, runs eagerly: nothing would bring the tensors that it '
            'reads')
