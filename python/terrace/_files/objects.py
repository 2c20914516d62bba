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
        # All of them before the first is changed: one may hold another.
        before = [(name, thing, _copied(thing.state_dict()))
                  for name, thing in objects.items()]
        self._before: list[tuple[str, Any, Any]] = []  # of those begun with
        try:
            for was in before:
                name, thing, _ = was
                self._before.append(was)
                thing.load_state_dict(states[name])
        except BaseException as error:
            self.give_back(error)
            raise

    def give_back(self, error: BaseException) -> None:
        """All that can; of others that `error`, which is why, has a note."""
        for name, thing, state in self._before:
            try:
                thing.load_state_dict(state)
            except Exception as caught:
                if hasattr(error, 'add_note'):  # Python 3.11
                    error.add_note(
                        f'terrace: and {name} could not be given its state '
                        f'back: {type(caught).__name__}: {caught}')


def _copied(state: Any) -> Any:
    """Of a state_dict() that is no copy, too. One that cannot be copied is
    kept as it was given: it is needed only if something fails."""
    try:
        return copy.deepcopy(state)
    except Exception:
        return state
