"""What is compiled reads its tensors' memory without an operation that could
bring it, so all runs eagerly while a model is offloaded."""

from __future__ import annotations

import contextlib
import threading

import torch

_lock = threading.RLock()  # a finalizer may come within
_count = 0
_stance = contextlib.ExitStack()


def begin() -> None:
    """Of one model; each is ended once."""
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            _stance.enter_context(torch.compiler.set_stance('force_eager'))


def end() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _stance.close()
