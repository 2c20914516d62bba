"""The optimizer's state as its users read and write it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from terrace._base.groups import named_in
from terrace._base.mark import Mark
from terrace._optimizer.parameter_state import ParameterState
from terrace._ranks.interrupts import uninterrupted
from terrace._state.copy_file import CopyFile
from terrace._state.store import StateStore

# Of copies that are kept until the next step, though nothing else holds them.
_KEPT_BYTES = 64 << 20


def checked_key(parameter: Any) -> torch.Tensor:
    """TypeError: it can have no state."""
    if not isinstance(parameter, torch.Tensor):
        raise TypeError(_no_key_text(parameter))
    return parameter


class StateView(MutableMapping):
    """The live state, from each parameter that has state to a mapping with

        step          float32 scalar, as in torch.optim.AdamW
        exp_avg       float32, the parameter's shape: first moment
        exp_avg_sq    float32, the parameter's shape: second moment
        master_param  float32, the parameter's shape; of 16-bit parameters

    of which those of a DTensor are DTensors that are placed as it is, in CPU
    memory. A look at a tensor copies it out of its tier; `step` alone costs
    nothing. As in torch it may be written, in place, by assignment, with del,
    pop and clear: a copy that was changed is written back before the next
    step, also one that was written through `.data` or numpy. A tensor that was
    taken out before a step is of before it: what is written into it after that
    is refused by the next one, unless it is written through those.
    """

    def __init__(self, store: StateStore,
                 owner: weakref.ref[torch.optim.Optimizer]) -> None:
        self._store = store
        self._owner = owner  # whose groups have names for messages
        # By id of the parameter: all that there are; those with copies, the
        # last ones of them; older ones of which callers have tensors; those
        # with keys set or deleted.
        self._known: weakref.WeakValueDictionary[int, ParameterState] = (
            weakref.WeakValueDictionary())
        self._recent: OrderedDict[int, ParameterState] = OrderedDict()
        self._recent_bytes = 0
        self._held: dict[int, ParameterState] = {}
        self._assigned: dict[int, ParameterState] = {}
        # Of those that were written back, until the store has them.
        self._steps: dict[torch.Tensor, int] = {}
        # Tensors of before the last change.
        self._stale: list[tuple[str, weakref.ref, Mark]] = []
        self._changes = store.changes

    def __len__(self) -> int:
        return self._store.count_with_state() + sum(
            bool(state) - self._store.has_state(state.parameter)
            for state in self._assigned.values())

    def __iter__(self) -> Iterator[torch.Tensor]:
        found = self._store.with_state()
        if self._assigned:
            ids = set(map(id, found))
            found = [p for p in found if p in self] + [
                state.parameter for key, state in self._assigned.items()
                if key not in ids and state]
        return iter(found)

    def __contains__(self, parameter: object) -> bool:
        if self._assigned and id(parameter) in self._assigned:
            return bool(self._assigned[id(parameter)])
        return self._store.has_state(parameter)

    def __getitem__(self, parameter: torch.Tensor) -> ParameterState:
        """Of one that was not stepped an empty one, as torch's defaultdict."""
        if not isinstance(parameter, torch.Tensor):
            raise KeyError(_no_key_text(parameter))
        self.follow()
        state = self._known.get(id(parameter))
        if state is None:
            self._store.has_state(parameter)  # of a forked child it raises
            state = ParameterState.of(self._store, parameter, self)
            self._known[id(parameter)] = state
        return state

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        return self[parameter] if parameter in self else default

    def __setitem__(self, parameter: torch.Tensor,
                    given: Mapping[str, Any]) -> None:
        checked_key(parameter)
        if given is self._known.get(id(parameter)):
            return
        values = dict(given)
        self._detach(parameter)
        state = self[parameter]
        state.clear()
        state.update(values)

    def __delitem__(self, parameter: torch.Tensor) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        self._detach(parameter)
        if self._store.has_state(parameter):
            self._store.forget([parameter])

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
        for state in list(self._known.values()):
            self._detach(state.parameter)
        self._store.forget(self._store.with_state())

    def assign(self, states: Sequence[tuple[torch.Tensor, Mapping[str, Any]]]
               ) -> None:
        """In place of all that there is."""
        self.clear()
        for parameter, state in states:
            self[parameter] = state

    def kept_aside(self) -> dict[torch.Tensor, Mapping[str, Any]]:
        """What there is, to outlive clear(): what callers hold, and copies."""
        return {parameter: self._known.get(id(parameter), copies)
                for parameter, copies in self.whole().items()}

    def __repr__(self) -> str:
        return f'<state of {len(self)} parameters, copied when read>'

    def whole(self) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """All of it at once: copies, in few calls; large ones are mapped from a
        file on a path. OSError: there is no room for it."""
        self.write_back()
        return self._copies(self._store.with_state())

    def copy_into(self, states: MutableMapping[Any, Any]) -> None:
        """Copies, as those of whole(), in place of what is part of this."""
        self.write_back()
        copies = self._copies([state.parameter for state in states.values()
                               if isinstance(state, ParameterState)
                               and self._store.has_state(state.parameter)])
        for key, state in states.items():
            if isinstance(state, ParameterState):
                states[key] = copies.get(state.parameter, {})

    def write_back(self) -> None:
        """What was changed, into the store. Raises ValueError: it is no state,
        or a tensor of before the last step was changed."""
        self.follow()
        for key, reference, mark in self._stale:
            tensor = reference()
            if tensor is not None and not mark.is_counted_of(tensor):
                self._stale = []
                raise ValueError(
                    f'terrace: a tensor of shape {list(tensor.shape)} was '
                    f'taken out of optimizer.state as {key} before the last '
                    'step, and written after it; take it out again')
        changed = [state for state in list(self._known.values())
                   if state.has_changed]
        if changed or self._steps:
            with uninterrupted():
                try:
                    for state in changed:
                        self._write(state)
                finally:
                    self._set_steps()
        self._assigned.clear()

    def forget_copies(self) -> None:
        """And what was written into them."""
        for state in list(self._known.values()):
            state.outdate()
        self._drop_all()

    def follow(self) -> None:
        """After a change of the state copies are of before it."""
        if self._changes == self._store.changes:
            return
        self._changes = self._store.changes
        self._stale = [copy for copy in self._stale if copy[1]() is not None]
        for state in list(self._known.values()):
            self._stale += state.copies()
            state.outdate()
        self._drop_all()

    def keep(self, state: ParameterState, assigned: bool) -> None:
        """Until the next step, or until they are more than is kept."""
        key = id(state.parameter)
        if assigned:
            self._assigned[key] = state
        if key not in self._recent:
            self._held.pop(key, None)
            self._recent[key] = state
            self._recent_bytes += state.bytes
            self._drop_old()

    def name_of(self, parameter: torch.Tensor) -> str:
        owner = self._owner()
        for named in named_in([] if owner is None else owner.param_groups):
            for name, known in named:
                if known is parameter:
                    return name
        return 'a parameter that is in no group'

    def _copies(self, parameters: list[torch.Tensor]
                ) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        file = CopyFile.of(self._store.settings, self._store.kept(parameters))
        return dict(zip(parameters, self._store.copies(parameters, file)))

    def _detach(self, parameter: torch.Tensor) -> None:
        key = id(parameter)
        state = self._known.pop(key, None)
        if state is None:
            return
        state.detach()
        self._steps.pop(parameter, None)
        if self._recent.pop(key, None) is not None:
            self._recent_bytes -= state.bytes
        self._held.pop(key, None)
        self._assigned.pop(key, None)

    def _drop_all(self) -> None:
        self._steps = {}
        self._recent.clear()
        self._recent_bytes = 0
        self._held.clear()
        self._assigned.clear()

    def _drop_old(self) -> None:
        """Of copies beyond the bytes that are kept those without a holder."""
        while self._recent_bytes > _KEPT_BYTES and len(self._recent) > 1:
            key, state = self._recent.popitem(last=False)
            self._recent_bytes -= state.bytes
            self._held[key] = state  # until it is written back
            try:
                self._write(state)
                self._set_steps()
            except Exception:  # tried again, and said, by the next step
                continue
            self._assigned.pop(key, None)
            if state.release():
                self._held.pop(key, None)

    def _write(self, state: ParameterState) -> None:
        step = state.write_back()
        if step is not None:
            self._steps[state.parameter] = step

    def _set_steps(self) -> None:
        self._store.set_steps(self._steps)
        self._steps = {}


def _no_key_text(key: object) -> str:
    return (f'terrace: state is kept for parameters, not for {key!r}; keep it '
            'beside the optimizer')
