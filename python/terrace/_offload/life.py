"""How long a model stays offloaded that its program does not close."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterable

import torch

from terrace._base.watched.tensor import WatchedTensor


class Life:
    """Until the last of its parameters is gone: then views that are left of
    them get their bytes in ordinary memory. At the end of the process nothing
    is brought back."""

    def __init__(self, parameters: Iterable[torch.Tensor],
                 close: Callable[[bool], None]) -> None:
        """`close`: with whether to restore. It is held by the parameters, and
        holds none of them."""
        self._close = close
        self._parameters = [WatchedTensor(parameter, self._on_end)
                            for parameter in parameters]
        _all.add(self)

    def end(self) -> None:
        """It is closed."""
        _all.discard(self)
        for parameter in self._parameters:
            parameter.end()
        self._parameters = []

    def close_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self._close(False)

    def _on_end(self) -> None:
        if any(parameter.is_alive for parameter in self._parameters):
            return
        # What another thread's operation has just now goes with the process.
        with contextlib.suppress(Exception):
            self._close(True)


def _close_all() -> None:
    for life in list(_all):
        life.close_at_exit()


_all: set[Life] = set()
atexit.register(_close_all)
