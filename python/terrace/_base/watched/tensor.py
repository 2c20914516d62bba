"""References to tensors that do not keep them, and that torch's swap_tensors
does not see: a tensor that has any is refused there."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from terrace._base.process_lock import ProcessLock
from terrace._base.replaced import Entry, Replaced


class WatchedTensor:
    """Called it is the tensor, or None once that has ended: one object of
    Python, whatever it is swapped with."""

    def __init__(self, tensor: torch.Tensor,
                 on_end: Callable[[], None] | None = None) -> None:
        """`on_end` is called as the tensor ends, unless end() was before; until
        then it keeps this."""
        self._on_end = on_end
        self._of: weakref.ref[torch.Tensor] | None = None
        self.is_alive = True
        self.watch(tensor)
        _all.add(id(tensor), self)

    def __call__(self) -> torch.Tensor | None:
        return None if self._of is None else self._of()

    def watch(self, tensor: torch.Tensor) -> None:
        """Again, after let_go()."""
        self._of = weakref.ref(tensor, self._on_end and self._ended)

    def let_go(self) -> None:
        self._of = None

    def end(self) -> None:
        """Again: nothing."""
        self.is_alive = False
        self._of = self._on_end = None

    def _ended(self, _: Any) -> None:
        on_end = self._on_end
        self.end()
        if on_end is not None:
            on_end()


class _All:
    """While there are some, what is swapped is let go meanwhile."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        # By the ids of tensors, which may have ended.
        self._watched: dict[int, list[weakref.ref[WatchedTensor]]] = {}
        self._swaps = Replaced(lambda: [
            Entry(torch.utils, 'swap_tensors', _unwatched)])

    def add(self, key: int, one: WatchedTensor) -> None:
        reference = weakref.ref(one, functools.partial(self._remove, key))
        with self._lock:
            self._watched.setdefault(key, []).append(reference)
            # Behind what makes objects: the collector may have ended the last
            # one meanwhile.
            self._swaps.begin(self)

    def of(self, tensor: torch.Tensor) -> list[WatchedTensor]:
        with self._lock:
            ones = [of() for of in self._watched.get(id(tensor), ())]
        return [one for one in ones if one is not None and one() is tensor]

    def _remove(self, key: int, reference: weakref.ref[WatchedTensor]) -> None:
        with self._lock:
            left = [each for each in self._watched.get(key, ())
                    if each is not reference]
            if left:
                self._watched[key] = left
            elif self._watched.pop(key, None) and not self._watched:
                self._swaps.end(self)


def _unwatched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> Any:
        watched = [(one, tensor) for tensor in (t1, t2)
                   for one in _all.of(tensor)]
        for one, _ in watched:
            one.let_go()
        try:
            return original(t1, t2)
        finally:
            for one, tensor in watched:
                one.watch(tensor)
    return swap_tensors


_all = _All()
