"""Which group steps each parameter whose state is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from terrace._base.groups import Groups, Named, named_in

_IN_NONE = -1


class Arrangement:
    """Looked for once, and again where groups or places have changed.

    Attributes:
        turns: int64 by place: the index of the group, -1 of a parameter that
            is in none. One, but where a parameter is in its group several
            times: it is stepped in as many turns.
        without_place: parameters of the groups that have none.
    """

    def __init__(self) -> None:
        self.turns: list[torch.Tensor] = [torch.empty(0, dtype=torch.int64)]
        self.without_place: list[Named] = []
        self._seen: list[list[torch.Tensor]] = []

    def follow(self, groups: Groups, places: Mapping[int, int]) -> None:
        """`places` by the ids of parameters. ValueError: a parameter is in
        two groups."""
        if self._holds(groups, len(places)):
            return
        turns = [[_IN_NONE] * len(places)]
        without: list[Named] = []
        times: dict[int, int] = {}
        for index, named in enumerate(named_in(groups)):
            before = dict(times)
            for name, parameter in named:
                if id(parameter) in before:
                    raise ValueError(f"terrace: parameter '{name}' is in two "
                                     'groups')
                turn = times[id(parameter)] = times.get(id(parameter), -1) + 1
                if turn == len(turns):
                    turns.append([_IN_NONE] * len(places))
                place = places.get(id(parameter))
                if place is None:
                    without.append((name, parameter))
                else:
                    turns[turn][place] = index
        self.turns = [torch.tensor(turn, dtype=torch.int64, device='cpu')
                      for turn in turns]
        self.without_place = without
        self._seen = [list(group['params']) for group in groups]

    def _holds(self, groups: Groups, places: int) -> bool:
        if len(self.turns[0]) != places or len(groups) != len(self._seen):
            return False
        with _NO_TWO_ARE_EQUAL:
            return all(group['params'] == seen for group, seen
                       in zip(groups, self._seen))


class _NoTwoAreEqual(TorchFunctionMode):
    """Within it lists of tensors are equal only if they hold the very same:
    comparing lists looks at identity first, at a nanosecond each, and asks only
    the others whether they are equal."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> bool:
        return False


_NO_TWO_ARE_EQUAL = _NoTwoAreEqual()
