"""The optimizer's state as its users read and write it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from terrace._base.groups import named_in
from terrace._optimizer.parameter_state import ParameterState
from terrace._state.store import StateStore

# Of copies that are kept until the next step, though nobody holds them.
_KEPT_BYTES = 64 << 20


class StateView(MutableMapping):
    """`optimizer.state`: from each parameter that was stepped to a mapping with

        step          float32 scalar, as in torch.optim.AdamW
        exp_avg       float32, the parameter's shape: first moment
        exp_avg_sq    float32, the parameter's shape: second moment
        master_param  float32, the parameter's shape; of 16-bit parameters

    A look at a tensor copies it out of its tier; `step` alone costs nothing.
    As in torch it may be written, in place, by assignment, with del, pop and
    clear: a copy that was changed is written back before the next step. A
    tensor that was taken out before a step is of before it: what is written
    into it after that is refused by the next one.
    """

    def __init__(self, store: StateStore,
                 owner: weakref.ref[torch.optim.Optimizer]) -> None:
        self._store = store
        self._owner = owner  # whose groups have names for messages
        # By id of the parameter: all that there are; those that were looked
        # at last, with their bytes; older ones of which somebody has tensors;
        # those with keys set or deleted.
        self._known: weakref.WeakValueDictionary[int, ParameterState] = (
            weakref.WeakValueDictionary())
        self._recent: OrderedDict[int, ParameterState] = OrderedDict()
        self._recent_bytes = 0
        self._held: dict[int, ParameterState] = {}
        self._assigned: dict[int, ParameterState] = {}
        # Tensors of before the last change.
        self._stale: list[tuple[str, weakref.ref, int]] = []
        self._changes = store.changes

    def __len__(self) -> int:
        return self._store.count_stepped() + sum(
            state.was_stepped - (self._store.steps_of(state.parameter) > 0)
            for state in self._assigned.values())

    def __iter__(self) -> Iterator[torch.Tensor]:
        found = self._store.stepped()
        if self._assigned:
            ids = set(map(id, found))
            found = [p for p in found if p in self] + [
                state.parameter for key, state in self._assigned.items()
                if key not in ids and state.was_stepped]
        return iter(found)

    def __contains__(self, parameter: object) -> bool:
        if self._assigned and id(parameter) in self._assigned:
            return self._assigned[id(parameter)].was_stepped
        return self._store.steps_of(parameter) > 0

    def __getitem__(self, parameter: torch.Tensor) -> ParameterState:
        """Of one that was not stepped an empty one, as torch's defaultdict."""
        if not isinstance(parameter, torch.Tensor):
            raise KeyError(parameter)
        self._follow()
        key = id(parameter)
        state = self._known.get(key)
        if state is None:
            self._store.steps_of(parameter)  # of a forked child it raises
            state = ParameterState(self._store, parameter, self._name_of,
                                   self._assigned)
            self._known[key] = state
        if key not in self._recent and key not in self._held:
            self._recent_bytes += state.bytes
            self._recent[key] = state
            self._drop_old()
        return state

    def __setitem__(self, parameter: torch.Tensor,
                    given: Mapping[str, Any]) -> None:
        if not isinstance(parameter, torch.Tensor):
            raise TypeError('terrace: state is kept for parameters, not for '
                            f'{parameter!r}')
        values = dict(given)
        state = self[parameter]
        state.clear()
        state.update(values)

    def __delitem__(self, parameter: torch.Tensor) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        self[parameter].clear()

    def pop(self, parameter: torch.Tensor, *default: Any) -> Any:
        """Its state, as a dict."""
        if parameter not in self:
            if default:
                return default[0]
            raise KeyError(parameter)
        values = dict(self[parameter])
        del self[parameter]
        return values

    def clear(self) -> None:
        self.forget_copies()
        self._store.forget(self._store.stepped())

    def assign(self, given: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
        """In place of all that there is."""
        values = [(parameter, dict(state))
                  for parameter, state in given.items()]
        self.clear()
        for parameter, state in values:
            self[parameter] = state

    def __repr__(self) -> str:
        return f'<state of {len(self)} parameters, copied when read>'

    def whole(self) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """All of it at once: copies, in few calls."""
        self.write_back()
        found = self._store.stepped()
        return zip(found, self._store.copies(found))

    def write_back(self) -> None:
        """What was changed, into the store. Raises ValueError: it is no state,
        or a tensor of before the last step was changed."""
        self._follow()
        for key, reference, version in self._stale:
            tensor = reference()
            if tensor is not None and tensor._version != version:
                self._stale = []
                raise ValueError(
                    f'terrace: a tensor of shape {list(tensor.shape)} was '
                    f'taken out of optimizer.state as {key} before the last '
                    'step, and written after it; take it out again')
        for state in list(self._known.values()):
            state.write_back()
        self._assigned.clear()

    def forget_copies(self) -> None:
        """And what was written into them."""
        for state in list(self._known.values()):
            state.forget()
        self._drop_all()

    def _follow(self) -> None:
        """After a change of the state copies are of before it."""
        if self._changes == self._store.changes:
            return
        self._changes = self._store.changes
        self._stale = [copy for copy in self._stale if copy[1]() is not None]
        for state in self._known.values():
            self._stale += state.copies()
        self._drop_all()

    def _drop_all(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0
        self._held.clear()
        self._assigned.clear()

    def _drop_old(self) -> None:
        """Of copies beyond the bytes that are kept those that nobody holds."""
        while self._recent_bytes > _KEPT_BYTES and len(self._recent) > 1:
            key, state = self._recent.popitem(last=False)
            self._recent_bytes -= state.bytes
            if key not in self._assigned:
                state.write_back()
                if not state.release():
                    self._held[key] = state

    def _name_of(self, parameter: torch.Tensor) -> str:
        owner = self._owner()
        for named in named_in([] if owner is None else owner.param_groups):
            for name, known in named:
                if known is parameter:
                    return name
        return 'a parameter that is in no group'


class WholeState:
    """The same to torch's state_dict(), which takes all of it."""

    def __init__(self, view: StateView) -> None:
        self.items = view.whole
