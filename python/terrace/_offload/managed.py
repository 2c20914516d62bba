"""The compiled side of one offloaded model is reached through this."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from terrace._base import errors, library
from terrace._base.errors import check
from terrace._base.groups import Named
from terrace._state.settings import Settings


class Managed:
    """A torch.classes.terrace.Offload, whose Outcomes are raised as exceptions.
    It is thread-safe, as that object is.

    Attributes:
        settings: where parameters, and the state that joins them, may lie.
        is_ended: whether nothing is left to close.
        is_below: whether there is a tier below; else all is in memory.
        has_placed: whether placement() was ever begun.
        waited_seconds: how long operations waited for updates that have ended,
            of optimizers that joined.
    """

    def __init__(self, named: Sequence[Named],
                 modules: Sequence[Sequence[int]],
                 settings: Settings) -> None:
        """Makes room for these parameters, which take() then takes over."""
        self._native = library.new_offload()
        self.settings = settings
        self.is_ended = False
        self.has_placed = False
        self.waited_seconds = 0.0
        self._lock = threading.Lock()  # It guards waited_seconds.
        self._joined: weakref.WeakSet[Any] = weakref.WeakSet()
        _all.add(self)
        check(self._native.open([parameter for _, parameter in named],
                                [name for name, _ in named],
                                [list(module) for module in modules],
                                settings.for_library(_size_of(named))))
        self.is_below = len(self.stats()['tiers']) > 1

    @property
    def is_closed(self) -> bool:
        """A closed model stays closed. A forked child has nothing of the model,
        which is closed there."""
        return self._native.is_closed()

    @staticmethod
    def all_open() -> list[Managed]:
        return [each for each in list(_all) if not each.is_closed]

    def take(self, named: Sequence[Named]) -> None:
        """Takes over all of these parameters, or none."""
        check(self._native.manage([parameter for _, parameter in named],
                                  [name for name, _ in named]))

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is of the model. This is no operation on it."""
        return self._native.has(tensor)

    def join(self, optimizer: Any) -> None:
        """The optimizer has the model's memory, and is closed with it."""
        self._joined.add(optimizer)

    def add_wait(self, seconds: float) -> None:
        """Operations waited so long for updates of an optimizer that joined."""
        with self._lock:
            self.waited_seconds += seconds

    @property
    def state_bytes(self) -> int:
        """The state of all optimizers that joined."""
        return sum(optimizer.state_bytes for optimizer in list(self._joined))

    @property
    def gradient_bytes(self) -> int:
        """The gradients that may lie below because optimizers joined."""
        return sum(optimizer.gradient_bytes
                   for optimizer in list(self._joined))

    @property
    def native(self) -> Any:
        """A compiled optimizer that joins is opened with this."""
        return self._native.object

    def take_gradient(self, parameter: torch.Tensor) -> None:
        """Takes over the gradient that the parameter has now, until that ends.
        It does nothing for a parameter that is not of the model, as one that
        has other memory since."""
        check(self._native.manage_gradient(parameter))

    def take_shard_gradient(self, name: str, shard: torch.Tensor) -> None:
        """What the gradient of a shard, which stays in memory, is now, until it
        ends."""
        check(self._native.manage_shard_gradient(name, shard))

    @contextlib.contextmanager
    def lease(self, tensor: torch.Tensor,
              write: bool) -> Iterator[torch.Tensor]:
        held = self.hold(tensor, write)
        try:
            yield tensor
        finally:
            held.end()

    def hold(self, tensor: torch.Tensor, write: bool) -> Any:
        """The tensor's bytes are in memory until end() of the answer, or until
        nothing has the answer any more: an interrupt leaves no lease."""
        outcome, held = self._native.lease(tensor, write)
        check(outcome)
        return held

    @contextlib.contextmanager
    def placement(self) -> Iterator[None]:
        outcome, scope = self._native.begin_placement()
        check(outcome)
        self.has_placed = True
        try:
            yield
        finally:
            scope.end()

    def save_activation(self, tensor: torch.Tensor) -> None:
        """Autograd saves the tensor, which may lie below from now on.

        Raises RuntimeError, from what went wrong."""
        outcome, _ = self._native.save_activation(tensor)
        if outcome[0]:
            why = errors.exception_of(outcome)
            raise RuntimeError(f'terrace: {outcome[1]}') from why

    def use_activation(self, tensor: torch.Tensor) -> None:
        """Backward asks for the tensor."""
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

    def over_budget(self) -> tuple[str, int]:
        """The operation that took most beyond the budget, and these bytes; ''
        and 0 where no operation did."""
        outcome, operation, size = self._native.over_budget()
        check(outcome)
        return operation, size

    def stats(self) -> dict[str, Any]:
        outcome, text = self._native.stats()
        check(outcome)
        return json.loads(text)

    def flush(self) -> None:
        """Waits for the updates of all optimizers that joined."""
        _raise_all(self._each_joined(lambda optimizer: optimizer.flush()))

    def close(self, restore: bool) -> None:
        """A second call closes what is left. Where a tensor is leased or in use
        it raises RuntimeError, and the model stays open; after any other error
        the model is closed."""
        failed = self._each_joined(lambda optimizer: optimizer.flush())
        try:
            closed, outcome = self._native.close(restore)
        except Exception as error:
            _raise_all([error, *failed])
        failed[:0] = _failure(outcome)
        if closed:
            failed += self._each_joined(self._close_joined)
            failed += _failure(self._native.end())
            self.is_ended = True
        _raise_all(failed)

    def _close_joined(self, optimizer: Any) -> None:
        try:
            optimizer.close()
        except Exception:
            self._joined.discard(optimizer)
            raise
        self._joined.discard(optimizer)

    def _each_joined(self, act: Callable[[Any], None]) -> list[Exception]:
        """Acts on each optimizer, also after an error; answers the errors."""
        failed = []
        for optimizer in list(self._joined):
            try:
                act(optimizer)
            except Exception as error:
                failed.append(error)
        return failed


def _failure(outcome: errors.Outcome) -> list[Exception]:
    return [errors.exception_of(outcome)] if outcome[0] else []


def _raise_all(failed: Sequence[Exception]) -> None:
    """Raises the first error, which tells of the others: nothing else does."""
    if not failed:
        return
    first, *others = failed
    for other in others:
        if hasattr(first, 'add_note'):  # Python 3.11
            first.add_note(f'and {type(other).__name__}: {other}')
        else:
            other.__context__ = first.__context__
            first.__context__ = other
    raise first


_all: weakref.WeakSet[Managed] = weakref.WeakSet()


def _size_of(named: Sequence[Named]) -> int:
    """The bytes of the parameters; memory that several share counts once."""
    sizes = {}
    for _, parameter in named:
        try:
            storage = parameter.untyped_storage()
            # A tensor on the meta device has no address.
            place = storage.data_ptr() or id(parameter)
            sizes[place] = storage.nbytes()
        except RuntimeError:  # It has no storage: the library says so better.
            continue
    return sum(sizes.values())
