"""The state of one parameter as scripts read and write it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from terrace._base.arrays import keys_of, state_bytes
from terrace._optimizer.checked_state import checked_changes
from terrace._state.store import StateStore


class ParameterState(MutableMapping, dict):
    """`optimizer.state[parameter]`: copies, made when asked for, of what
    torch.optim.AdamW keeps there. What is changed, in place or by assignment,
    is the state in the next step. A dict to whoever asks; nothing is in the
    dict that it is."""

    def __init__(self, store: StateStore, parameter: torch.Tensor,
                 name_of: Callable[[torch.Tensor], str],
                 assigned: dict[int, ParameterState]) -> None:
        self._store = store
        self.parameter = parameter
        self._name_of = name_of
        self._assigned = assigned  # those of which keys were set or deleted
        self._values: dict[str, Any] = {}
        self._is_complete = False  # all keys are among them
        # Of each tensor that was copied out: it, and how often it was written.
        self._copied: dict[str, tuple[Any, int]] = {}
        self._changes = store.changes  # when they were

    def __getitem__(self, key: str) -> Any:
        self._refresh()
        if key not in self._values and not self._is_complete:
            steps = self._store.steps_of(self.parameter)
            if key == 'step' and steps:
                self._copy('step', torch.tensor(float(steps), device='cpu'))
            else:
                self._complete()
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._complete()
        self._assigned[id(self.parameter)] = self
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        self._complete()
        self._assigned[id(self.parameter)] = self
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys())

    def __or__(self, other: Any) -> dict[str, Any]:
        return dict(self) | other

    def __ror__(self, other: Any) -> dict[str, Any]:
        return other | dict(self)

    def __ior__(self, other: Any) -> ParameterState:
        self.update(other)
        return self

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OrderedDict, (list(self.items()),)

    @property
    def bytes(self) -> int:
        """Of memory that its copies may take."""
        return state_bytes(self.parameter)

    @property
    def was_stepped(self) -> bool:
        """As it will be when it is written back."""
        return len(self) > 0

    @property
    def has_changed(self) -> bool:
        """What was not written back."""
        if self._changes != self._store.changes:
            return False
        if self._is_complete and self._values.keys() != self._copied.keys():
            return True
        return any(self._values[key] is not tensor
                   or tensor._version != version
                   for key, (tensor, version) in self._copied.items())

    def write_back(self) -> None:
        """Raises ValueError: what is there is no state."""
        if not self.has_changed:
            return
        self._complete()
        parameter = self.parameter
        if self._values:
            name = self._name_of(parameter)
            self._store.edit((name, parameter), checked_changes(
                self._values, self._unchanged(), parameter, name))
        elif self._store.steps_of(parameter):
            self._store.forget([parameter])
        self._copied = {key: (value, value._version)
                        for key, value in self._values.items()
                        if isinstance(value, torch.Tensor)}
        if self._values.keys() != self._copied.keys():
            self.forget()  # a number as step, say

    def release(self) -> bool:
        """Gives up what is written back and nobody else holds; whether that is
        all."""
        held = [(key, weakref.ref(tensor), version)
                for key, (tensor, version) in self._copied.items()]
        tensor = None  # the loop's
        self.forget()
        for key, reference, version in held:
            tensor = reference()
            if tensor is not None:
                self._values[key] = tensor
                self._copied[key] = tensor, version
        return not self._values

    def copies(self) -> list[tuple[str, weakref.ref, int]]:
        """The tensors that were given out, without holding them: what each is
        called, and how often it was written until now."""
        return [(key, weakref.ref(tensor), tensor._version)
                for key, (tensor, _) in self._copied.items()]

    def _unchanged(self) -> set[str]:
        return {key for key, (tensor, version) in self._copied.items()
                if self._values.get(key) is tensor
                and tensor._version == version}

    def _keys(self) -> list[str]:
        self._refresh()
        if self._is_complete:
            return list(self._values)
        parameter = self.parameter
        return (['step', *keys_of(parameter)]
                if self._store.steps_of(parameter) else [])

    def _complete(self) -> None:
        self._refresh()
        if self._is_complete:
            return
        parameter = self.parameter
        if self._store.steps_of(parameter):
            for key, tensor in self._store.copies([parameter])[0].items():
                if key not in self._values:
                    self._copy(key, tensor)
        self._is_complete = True

    def _copy(self, key: str, tensor: torch.Tensor) -> None:
        self._values[key] = tensor
        self._copied[key] = tensor, tensor._version

    def _refresh(self) -> None:
        """After a step or a load what was copied is of before it."""
        if self._changes != self._store.changes:
            self.forget()

    def forget(self) -> None:
        """What was copied out, and written into that."""
        self._values, self._copied = {}, {}
        self._is_complete = False
        self._changes = self._store.changes
