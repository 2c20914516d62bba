"""The compiled side of one offloaded model."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from terrace._base import errors, library
from terrace._base.errors import check
from terrace._base.groups import Named
from terrace._state.settings import Settings


class Managed:
    """torch.classes.terrace.Offload. Its Outcomes are raised as exceptions.
    Thread-safe, as that is.

    Attributes:
        settings: where the parameters may be, and what joins them.
        is_closed: for good.
        is_below: there is a tier below; else all is in memory.
    """

    def __init__(self, named: Sequence[Named],
                 modules: Sequence[Sequence[int]], settings: Settings,
                 size_bytes: int) -> None:
        """Room for parameters as these, which take() then takes."""
        self._native = library.new_offload()
        self.settings = settings
        self.is_closed = False
        self._joined: weakref.WeakSet[Any] = weakref.WeakSet()
        # By the parameter's id, itself and its hook.
        self._watched: dict[int, tuple[Callable[[], Any], Any]] = {}
        _all.add(self)
        check(self._native.open([parameter for _, parameter in named],
                                [name for name, _ in named],
                                [list(module) for module in modules],
                                settings.for_library(size_bytes)))
        self.is_below = len(self.stats()['tiers']) > 1

    @staticmethod
    def all_open() -> list[Managed]:
        return [each for each in list(_all) if not each.is_closed]

    def take(self, named: Sequence[Named]) -> None:
        """All of these, or none."""
        check(self._native.manage([parameter for _, parameter in named],
                                  [name for name, _ in named]))

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of these; no operation on it."""
        return self._native.has(tensor)

    def join(self, optimizer: Any) -> Any:
        """A compiled optimizer is to be of the same memory: what it is opened
        with. It is closed with the model."""
        self._joined.add(optimizer)
        return self._native

    def manage_gradients(self, named: Iterable[Named]) -> None:
        """Those of parameters that are here, from when backward has made
        them, until close()."""
        if not self.is_below:
            return
        for name, parameter in named:
            known, _ = self._watched.get(id(parameter), (_nothing, None))
            if (known() is parameter or not parameter.requires_grad
                    or not self.has(parameter)):
                continue
            handle = parameter.register_post_accumulate_grad_hook(
                _AfterGradient(self, name))
            self._watched[id(parameter)] = weakref.ref(parameter), handle
            self.take_gradient(name, parameter)

    def take_gradient(self, name: str, parameter: torch.Tensor) -> None:
        check(self._native.manage_gradient(parameter, name))

    @contextlib.contextmanager
    def lease(self, tensor: torch.Tensor,
              write: bool) -> Iterator[torch.Tensor]:
        outcome, number = self._native.lease(tensor, write)
        check(outcome)
        try:
            yield tensor
        finally:
            self._native.end_lease(number)

    def save_activation(self, tensor: torch.Tensor) -> None:
        """As autograd saves it: below from now on, unless it cannot be.

        Raises RuntimeError, from what went wrong."""
        outcome, _ = self._native.save_activation(tensor)
        if outcome[0]:
            why = errors.exception_of(outcome)
            raise RuntimeError(f'terrace: {outcome[1]}') from why

    def use_activation(self, tensor: torch.Tensor) -> None:
        """As backward asks for it."""
        self._native.use_activation(tensor)

    def prefetch(self, tensors: Sequence[torch.Tensor]) -> None:
        check(self._native.prefetch(tensors))

    def begin_step(self) -> None:
        check(self._native.begin_step())

    def retry(self) -> None:
        check(self._native.retry())

    def error(self) -> Exception | None:
        outcome = self._native.error()
        return errors.exception_of(outcome) if outcome[0] else None

    def stats(self) -> dict[str, Any]:
        outcome, text = self._native.stats()
        check(outcome)
        return json.loads(text)

    def close(self, restore: bool) -> None:
        """Again: nothing. RuntimeError, and it stays open: a tensor is leased
        or in use. Other errors: it is closed."""
        closed, outcome = self._native.close(restore)
        self.is_closed |= closed
        if not closed:
            check(outcome)
            return
        for _, handle in self._watched.values():
            handle.remove()
        self._watched.clear()
        try:
            for optimizer in list(self._joined):
                optimizer.close()
        finally:
            ended = self._native.end()
        check(outcome)
        check(ended)


class _AfterGradient:
    """A hook of a parameter, with which it lives."""

    def __init__(self, model: Managed, name: str) -> None:
        self._model = weakref.ref(model)
        self._name = name

    def __call__(self, parameter: torch.Tensor) -> None:
        model = self._model()
        if model is not None and not model.is_closed:
            model.take_gradient(self._name, parameter)


_all: weakref.WeakSet[Managed] = weakref.WeakSet()


def _nothing() -> None:
    return None
