"""Where each parameter is among those of all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Positions:
    """Looked for once, and again where the groups have changed."""

    def __init__(self) -> None:
        # By id: the position, the group and the place in it, where it is
        # looked at before it is believed.
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
            found = groups[group]['params'][place]
        except LookupError:
            return None
        return position if found is parameter else None

    def _map(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._known.clear()
        for i, group in enumerate(groups):
            first = len(self._known)
            for place, parameter in enumerate(group['params']):
                self._known[id(parameter)] = (first + place, i, place)
