"""Which group steps each parameter whose state is kept."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_not
from typing import Any

import torch

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
        return (len(self.turns[0]) == places and len(groups) == len(self._seen)
                and all(map(_are_the_same, groups, self._seen)))


def _are_the_same(group: Mapping[str, Any], seen: list[torch.Tensor]) -> bool:
    parameters = group['params']
    return (len(parameters) == len(seen)
            and not any(map(is_not, parameters, seen)))
