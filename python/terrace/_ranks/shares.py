"""The rank that keeps the state of each parameter."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from terrace._base.arrays import state_bytes


class Shares:
    """Shares whole parameters out, those of a group the largest first, each to
    the rank that has least: ranks differ by one parameter at most, and a group
    that comes later moves nothing. Every rank that shares the same groups out
    has the same shares. Immutable."""

    def __init__(self, ranks: int) -> None:
        # A heap of each rank's bytes.
        self._loads = [(0, rank) for rank in range(ranks)]
        self._owners: dict[int, int] = {}  # by id of the parameter
        self._parameters: list[torch.Tensor] = []  # so that an id means one

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """All of them, in the order in which they came."""
        return self._parameters

    @property
    def state_bytes(self) -> int:
        """Of all ranks."""
        return sum(load for load, _ in self._loads)

    def owner(self, parameter: torch.Tensor) -> int | None:
        """The rank that keeps the parameter's state; None: no rank does yet."""
        return self._owners.get(id(parameter))

    def extended(self, parameters: Sequence[torch.Tensor]) -> Shares:
        """Returns the shares with one group more, of which parameters that are
        known already stay where they are."""
        new = [p for p in parameters if id(p) not in self._owners]
        result = Shares(0)
        result._loads = list(self._loads)
        result._owners = dict(self._owners)
        result._parameters = [*self._parameters, *new]
        for parameter in sorted(new, key=lambda p: -state_bytes(p)):
            load, rank = result._loads[0]
            heapq.heapreplace(result._loads,
                              (load + state_bytes(parameter), rank))
            result._owners[id(parameter)] = rank
        return result
