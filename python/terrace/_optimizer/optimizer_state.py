"""`optimizer.state` as its users hold it."""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from terrace._optimizer.state_view import StateView, checked_key


class OptimizerState(MutableMapping, dict):
    """The state of each parameter; see StateView. Where another mapping took
    its place, what there was until then, as a plain one.

    A dict for isinstance; nothing is in the dict that it is, and a call of its
    type returns a plain one."""

    default_factory = dict  # as of torch's, which is a defaultdict
    __ne__ = object.__ne__  # the opposite of ==, and not that of the dict it is

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        return defaultdict(*arguments, **named)

    @classmethod
    def of(cls, view: StateView) -> OptimizerState:
        state = dict.__new__(cls)
        state._view = view
        state._mapping = view
        return state

    def is_of(self, view: StateView) -> bool:
        """Now, or before another took its place."""
        return self._view is view

    def return_to_place(self) -> None:
        self._mapping = self._view

    def set_aside(self) -> None:
        """Before another takes its place. OSError, MemoryError: there is no
        room for copies of all of it."""
        if self._mapping is self._view:
            self._mapping = defaultdict(dict, self._view.kept_aside())

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        return self._mapping[parameter]

    def __setitem__(self, parameter: torch.Tensor,
                    state: Mapping[str, Any]) -> None:
        self._mapping[parameter] = state

    def __delitem__(self, parameter: torch.Tensor) -> None:
        del self._mapping[parameter]

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._mapping

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._mapping)

    def __reversed__(self) -> Iterator[torch.Tensor]:
        return reversed(list(self._mapping))

    def __len__(self) -> int:
        return len(self._mapping)

    def __repr__(self) -> str:
        return repr(self._mapping)

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        return self._mapping.get(parameter, default)

    def pop(self, parameter: torch.Tensor, *default: Any) -> Any:
        return self._mapping.pop(parameter, *default)

    def popitem(self) -> tuple[torch.Tensor, Any]:
        """The last."""
        for parameter in reversed(self):
            return parameter, self.pop(parameter)
        raise KeyError('terrace: there is no state')

    def clear(self) -> None:
        self._mapping.clear()

    def copy(self) -> defaultdict[torch.Tensor, Any]:
        """Of the mapping; what is in it is part of the state as long as that
        is this optimizer's."""
        return defaultdict(dict, self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[torch.Tensor, Any]:
        """The parameters stay what they are."""
        if self._mapping is self._view:
            return self._view.whole()
        return {parameter: copy.deepcopy(dict(state), memo)
                for parameter, state in self.items()}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return defaultdict, (dict,), None, None, iter(
            self.__deepcopy__({}).items())

    def __or__(self, other: Any) -> dict[torch.Tensor, Any]:
        return self.copy() | other

    def __ror__(self, other: Any) -> dict[torch.Tensor, Any]:
        return other | self.copy()

    def __ior__(self, other: Any) -> OptimizerState:
        self.update(other)
        return self


class StatePlace:
    """Of an optimizer, where mappings are put as its state.

    Attributes:
        state: what `optimizer.state` is.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        self.state = OptimizerState.of(view)

    def assign(self, given: Mapping[Any, Any]) -> None:
        """Its values, copied, in place of all state. What was here stays what
        it is for those that hold it, who may put it back. TypeError: it is no
        state; nothing was changed."""
        if given is self.state:
            return
        values = [(checked_key(parameter), dict(state))
                  for parameter, state in given.items()]
        self._leave()
        self._view.assign(values)
        if isinstance(given, OptimizerState) and given.is_of(self._view):
            given.return_to_place()
            self.state = given

    def _leave(self) -> None:
        held = weakref.ref(self.state)
        self.state = OptimizerState.of(self._view)
        before = held()
        if before is None:  # no caller has it
            return
        try:
            before.set_aside()
        except BaseException:
            self.state = before
            raise
