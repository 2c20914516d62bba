"""The compiled optimizer, whose counters are looked up once after each call
that may change them."""

from __future__ import annotations

import os
import weakref
from typing import Any

from terrace import _errors

_NOTHING_COUNTED: tuple[int, list[int], int] = (-1, [], 0)


class Compiled:
    """torch.classes.terrace.Optimizer. Thread-safe, as that is."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._changes = 0  # begun and ended
        # After how many changes, the steps then, and how many are not 0.
        self._counted = _NOTHING_COUNTED
        _all.add(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def steps(self) -> list[int]:
        """Those of each parameter; not to be changed."""
        changes, steps, _ = self._counted
        return steps if changes == self._changes else self._count()[1]

    def count_stepped(self) -> int:
        """The parameters that were stepped."""
        changes, _, stepped = self._counted
        return stepped if changes == self._changes else self._count()[2]

    def _count(self) -> tuple[int, list[int], int]:
        _errors.check(self._native.check())  # a forked child has none
        # What another thread changes meanwhile makes this an old answer.
        changes, steps = self._changes, self._native.steps()
        counted = changes, steps, sum(1 for step in steps if step)
        self._counted = counted
        return counted

    def _change(self, name: str, *arguments: Any) -> Any:
        self._changes += 1
        try:
            return getattr(self._native, name)(*arguments)
        finally:
            self._changes += 1

    def open(self, *arguments: Any) -> Any:
        return self._change('open', *arguments)

    def add(self, *arguments: Any) -> Any:
        return self._change('add', *arguments)

    def step(self, *arguments: Any) -> Any:
        return self._change('step', *arguments)

    def set_steps(self, *arguments: Any) -> Any:
        return self._change('set_steps', *arguments)

    def reset(self) -> Any:
        return self._change('reset')

    def load(self, *arguments: Any) -> Any:
        return self._change('load', *arguments)

    def close(self) -> Any:
        return self._change('close')


_all: weakref.WeakSet[Compiled] = weakref.WeakSet()


def _forget_counts() -> None:
    """In a forked child, where they are asked for again, and refused: looking
    at the process's id would cost more than the look at what was counted."""
    for compiled in _all:
        compiled._counted = _NOTHING_COUNTED


os.register_at_fork(after_in_child=_forget_counts)
