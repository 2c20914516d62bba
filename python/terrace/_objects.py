"""Things with a state_dict() that are loaded beside a model: all of them, or
none."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


class LoadedObjects:
    """What `objects` were before they took over the states of those names.

    If one cannot, those that already have are given their own back, and its
    error is raised.
    """

    def __init__(self, objects: Mapping[str, Any],
                 states: Mapping[str, Any]) -> None:
        # Of a state_dict() that is no copy, too.
        self._before = [(thing, copy.deepcopy(thing.state_dict()))
                        for thing in objects.values()]
        try:
            for name, thing in objects.items():
                thing.load_state_dict(states[name])
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        for thing, state in self._before:
            thing.load_state_dict(state)
