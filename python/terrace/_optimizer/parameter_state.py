"""The state of one parameter as scripts read and write it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

import torch

from terrace._base.arrays import keys_of, state_bytes, step_tensor
from terrace._base.mark import Mark
from terrace._optimizer.checked_state import checked_changes
from terrace._state.store import StateStore


class Keeper(Protocol):
    """What a ParameterState tells of itself to the view that it is part of."""

    def follow(self) -> None:
        """Whether the state has changed is to be looked at."""

    def keep(self, state: ParameterState, assigned: bool) -> None:
        """It has copies, or keys that were set or deleted."""

    def name_of(self, parameter: torch.Tensor) -> str:
        """For messages."""


class ParameterState(MutableMapping, dict):
    """`optimizer.state[parameter]`: copies, made when asked for, of what
    torch.optim.AdamW keeps there. What is changed, in place or by assignment,
    is the state in the next step. A dict for isinstance; nothing is in the
    dict that it is, and a call of its type returns a plain one."""

    __ne__ = object.__ne__  # the opposite of ==, and not that of the dict it is

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        return dict(*arguments, **named)

    @classmethod
    def of(cls, store: StateStore, parameter: torch.Tensor,
           keeper: Keeper) -> ParameterState:
        state = dict.__new__(cls)
        state._begin(store, parameter, keeper)
        return state

    def _begin(self, store: StateStore, parameter: torch.Tensor,
               keeper: Keeper) -> None:
        self._store = store
        self.parameter = parameter
        self._keeper: Keeper | None = keeper  # None: it is of no view
        self._values: dict[str, Any] = {}
        self._is_complete = False  # all keys are among them
        # Each tensor that was copied out, and what it was then.
        self._copied: dict[str, tuple[Any, Mark]] = {}

    def __getitem__(self, key: str) -> Any:
        self._follow()
        if key not in self._values and not self._is_complete:
            if key == 'step' and self._store.has_state(self.parameter):
                steps = self._store.steps_of(self.parameter)
                with torch.inference_mode(False):
                    self._copy('step', step_tensor(steps))
            else:
                self._complete()
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._complete()
        self._values[key] = value
        self._tell(assigned=True)

    def __delitem__(self, key: str) -> None:
        self._complete()
        del self._values[key]
        self._tell(assigned=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        return repr(dict(self))

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
    def has_changed(self) -> bool:
        """What was not written back."""
        if self._is_complete and self._values.keys() != self._copied.keys():
            return True
        return len(self._unchanged()) < len(self._copied)

    def write_back(self) -> int | None:
        """Into the store; the number of its step, where that is to be set.
        Raises ValueError: what is there is no state."""
        if not self.has_changed:
            return None
        self._complete()
        parameter, changes = self.parameter, {}
        if self._values:
            changes = checked_changes(
                self._values, set() if self._store.is_cast(parameter)
                else self._unchanged(), parameter,
                lambda: self._keeper.name_of(parameter))
            self._store.edit(parameter, changes,
                             lambda: self._keeper.name_of(parameter))
        elif self._store.has_state(parameter):
            self._store.forget([parameter])
        self._copied = {key: (value, Mark.of(value))
                        for key, value in self._values.items()
                        if isinstance(value, torch.Tensor)}
        if self._values.keys() != self._copied.keys():
            self._forget()  # a number as step, say
        return changes.get('step')

    def release(self) -> bool:
        """Gives up what is written back and held nowhere else; whether that is
        all."""
        held = self.copies()
        self._forget()
        for key, reference, mark in held:
            tensor = reference()
            if tensor is not None:
                self._values[key] = tensor
                self._copied[key] = tensor, mark
        return not self._values

    def copies(self) -> list[tuple[str, weakref.ref, Mark]]:
        """The tensors that were given out, without holding them: what each is
        called and was until now."""
        return [(key, weakref.ref(tensor), mark)
                for key, (tensor, mark) in self._copied.items()]

    def outdate(self) -> None:
        """What was copied out is of before a change of the state."""
        self._forget()

    def detach(self) -> None:
        """It is no optimizer's state any more, and stays as it is for those
        that hold it."""
        self._complete()
        self._keeper = None

    def _unchanged(self) -> set[str]:
        return {key for key, (tensor, mark) in self._copied.items()
                if self._values.get(key) is tensor and mark.is_of(tensor)}

    def _keys(self) -> list[str]:
        self._follow()
        if self._is_complete:
            return list(self._values)
        if not self._store.has_state(self.parameter):
            return []
        kept, = self._store.kept([self.parameter])
        return ['step', *keys_of(kept)]

    def _complete(self) -> None:
        self._follow()
        if self._is_complete:
            return
        if self._store.has_state(self.parameter):
            # Elsewhere a tensor does not count how often it is written.
            with torch.inference_mode(False):
                copies = self._store.copies([self.parameter])[0]
            for key, tensor in copies.items():
                if key not in self._values:
                    self._copy(key, tensor)
        self._is_complete = True

    def _copy(self, key: str, tensor: torch.Tensor) -> None:
        self._values[key] = tensor
        self._copied[key] = tensor, Mark.of(tensor)
        self._tell(assigned=False)

    def _tell(self, assigned: bool) -> None:
        if self._keeper is not None:
            self._keeper.keep(self, assigned)

    def _follow(self) -> None:
        if self._keeper is not None:
            self._keeper.follow()

    def _forget(self) -> None:
        self._values, self._copied = {}, {}
        self._is_complete = False
