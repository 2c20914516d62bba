"""A model that its program does not close stays offloaded for a while."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Iterable

import torch

from terrace._base.watched.tensor import WatchedTensor


class Life:
    """The model stays offloaded until the last of its parameters is gone; then
    views of them that are left get their bytes in ordinary memory. At the end
    of the process nothing is brought back."""

    def __init__(self, parameters: Iterable[torch.Tensor],
                 close: Callable[[bool], None]) -> None:
        """`close` is called with whether to restore. The parameters keep this
        object, and it keeps none of them."""
        self._close = close
        self._parameters = [WatchedTensor(parameter, self._on_end)
                            for parameter in parameters]
        _all.add(self)

    def end(self) -> None:
        """The model is closed."""
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
        # Tensors that another thread's operation has now go with the process.
        with contextlib.suppress(Exception):
            self._close(True)


def _close_all() -> None:
    for life in list(_all):
        life.close_at_exit()


_all: set[Life] = set()
atexit.register(_close_all)
