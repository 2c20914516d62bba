"""Where each parameter is among those of all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

_parameters = itemgetter('params')


class Positions:
    """Looked for once, and again where the groups have changed."""

    def __init__(self) -> None:
        # By id: the position, the group and the place in it, where it is
        # looked at before it is believed. Replaced, never changed: another
        # thread may be reading it.
        self._known: dict[int, tuple[int, int, int]] = {}

    def of(self, parameter: object,
           groups: Sequence[Mapping[str, Any]]) -> int | None:
        """None: it is in none of the groups."""
        position = self._look(parameter, groups)
        if position is None and any(parameter is p for group in groups
                                    for p in group['params']):
            self._map(groups)
            position = self._look(parameter, groups)
        return position

    def _look(self, parameter: object,
              groups: Sequence[Mapping[str, Any]]) -> int | None:
        try:
            position, group, place = self._known[id(parameter)]
            if groups[group]['params'][place] is not parameter:
                return None
            if group:  # those before it may be of another size now
                place += sum(map(len, map(_parameters, groups[:group])))
        except LookupError:
            return None
        return position if position == place else None

    def _map(self, groups: Sequence[Mapping[str, Any]]) -> None:
        known: dict[int, tuple[int, int, int]] = {}
        position = 0
        for i, group in enumerate(groups):
            for place, parameter in enumerate(group['params']):
                known[id(parameter)] = (position, i, place)
                position += 1
        self._known = known
