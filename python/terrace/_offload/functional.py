"""torch.func refuses to differentiate where hooks of saved tensors are. Those
of an offloaded model's activations are taken off for as long as it does so
inside the model's forward; what it saves meanwhile stays in memory.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import _autograd

from terrace._base.replaced import Replaced

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_replaced = Replaced()


class Packs:
    """A hook that packs, and may be taken off."""


def begin() -> None:
    """Of one model with such hooks; each is ended once."""
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            _replaced.put(torch.autograd.graph, 'disable_saved_tensors_hooks',
                          _without_ours)


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _replaced.restore()


def _without_ours(disable: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(disable)
    @contextlib.contextmanager
    def disables(error_message: str) -> Iterator[None]:
        taken = _take_off()
        try:
            with disable(error_message):
                yield
        finally:
            for hooks in reversed(taken):
                _autograd._push_saved_tensors_default_hooks(*hooks)
    return disables


def _take_off() -> list[tuple[Any, Any]]:
    """Of this thread; those above the last that is another's."""
    taken = []
    while True:
        hooks = _autograd._top_saved_tensors_default_hooks(True)
        if hooks is None or not isinstance(hooks[0], Packs):
            return taken
        _autograd._pop_saved_tensors_default_hooks()
        taken.append(hooks)
