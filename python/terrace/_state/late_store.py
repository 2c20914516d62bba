"""The state of parameters whose updates go on after step()."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from terrace._base.groups import Named
from terrace._base.local_shard import is_dtensor
from terrace._state import late_readers
from terrace._state.settings import Settings
from terrace._state.store import StateStore


class LateStore(StateStore):
    """step() returns when the gradients have been read for their norm. A thread
    of the library updates the parameters, in the order in which the last pass
    used them, and operations of torch wait for those that they take. Every
    other method waits for all.

    Where torch.compile has made something step() makes them itself: what it
    made reads memory without an operation."""

    def __init__(self, settings: Settings, is_asked_for: bool = True) -> None:
        """Unless it is asked for, parameters elsewhere than in CPU memory are
        stepped in step(), and all others with them."""
        super().__init__(settings)
        self._is_asked_for = is_asked_for
        self._told_seconds = 0.0  # of the waits of one compiled optimizer
        late_readers.watch(self)

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        for name, parameter in (pair for named in groups for pair in named):
            where = _elsewhere(parameter)
            if where and self._is_asked_for:
                raise NotImplementedError(
                    f"terrace: parameter '{name}' is {where}; overlap=True "
                    'updates those in CPU memory')
        super().add(groups)

    def check_between_steps(self, what: str) -> None:
        self._source.settle()

    def flush(self) -> None:
        self._compiled.flush()
        self._tell_waits()

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        self._tell_waits()
        return stats

    def close(self) -> None:
        late_readers.forget(self)
        self._tell_waits()
        super().close()

    def _tell_waits(self) -> None:
        """To the model that it joined. It waits for all updates: what asks the
        model waits for none."""
        if self.settings.home is None:
            return
        with contextlib.suppress(RuntimeError):  # closed, or a forked child
            waited = self._opened.waited_seconds()
            if waited < self._told_seconds:  # another one, with a count of 0
                self._told_seconds = 0.0
            self.settings.home.add_wait(waited - self._told_seconds)
            self._told_seconds = waited

    def _make_turn(self, parameters: Sequence[torch.Tensor],
                   group_of: torch.Tensor, numbers: Sequence[float],
                   scale: float, everything: Sequence[torch.Tensor]) -> None:
        self._compiled.flush()
        if (len(self._arrangement.turns) > 1 or not self._can_be_late()
                or self._compiled.incomplete()):  # what began so ends so
            super()._make_turn(parameters, group_of, numbers, scale, everything)
            return
        late_readers.watch(self)
        self._compiled.step_late(parameters, group_of, numbers, scale)

    def _can_be_late(self) -> bool:
        if late_readers.is_compiled():
            return False
        return (self._is_asked_for
                or not any(map(_elsewhere, self._places.parameters)))


def _elsewhere(parameter: torch.Tensor) -> str:
    if is_dtensor(parameter):
        return 'a DTensor'
    if parameter.device.type != 'cpu':
        return f'on {parameter.device}'
    return ''
