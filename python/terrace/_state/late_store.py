"""The state of parameters whose updates go on after step()."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from terrace._base.groups import Named
from terrace._base.library import storage_if_offloaded
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

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        late_readers.watch(self)

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        for name, parameter in (pair for named in groups for pair in named):
            where = _elsewhere(parameter)
            if where:
                raise NotImplementedError(
                    f"terrace: parameter '{name}' is {where}; overlap=True "
                    'updates those in memory')
        super().add(groups)

    def check_between_steps(self, what: str) -> None:
        self._compiled.settle()

    def flush(self) -> None:
        self._compiled.flush()

    def close(self) -> None:
        late_readers.forget(self)
        super().close()

    def _make_turn(self, parameters: Sequence[torch.Tensor],
                   group_of: torch.Tensor, numbers: Sequence[float],
                   scale: float, everything: Sequence[torch.Tensor]) -> None:
        self._compiled.flush()
        if (len(self._arrangement.turns) > 1 or late_readers.is_compiled()
                or self._compiled.incomplete()):  # what began so ends so
            super()._make_turn(parameters, group_of, numbers, scale, everything)
            return
        late_readers.watch(self)
        self._compiled.step_late(parameters, group_of, numbers, scale)


def _elsewhere(parameter: torch.Tensor) -> str:
    if is_dtensor(parameter):
        return 'a DTensor'
    if parameter.device.type != 'cpu':
        return f'on {parameter.device}'
    return 'of an offloaded model' if storage_if_offloaded(parameter) else ''
