"""What autograd saves in a model's forward for backward, below in between."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._C import _autograd
from torch.autograd.graph import saved_tensors_hooks

from terrace._base.amounts import bytes_text
from terrace._base.library import is_offloaded
from terrace._base.message import say
from terrace._base.replaced import Entry, Replaced
from terrace._offload import calls
from terrace._offload.managed import Managed
from terrace._offload.readers.leasing import is_exported


class Activations:
    """Hands over each tensor that is saved while the model is called, from a
    size on. It stays the tensor that it is for all that have it. The model's
    parameters, buffers and arguments are left alone, and so is what an array
    of numpy shares, and any view of a parameter: fully_shard and
    FullyShardedDataParallel gather theirs for a module's time, and resize
    their memory."""

    def __init__(self, managed: Managed, least_bytes: int) -> None:
        self._managed = managed
        self._least = least_bytes
        self._was_called = False  # with gradients
        self._is_told = False

    def begin(self, model: torch.nn.Module) -> None:
        calls.begin(model, self._called)
        _aside.begin(self)
        self._managed.begin_step()  # so that the first step is traced as well

    def end(self) -> None:
        """What is saved by then is not touched. Again: nothing."""
        calls.end(self._called)
        _aside.end(self)

    def tell(self) -> None:
        """After the first step with gradients, once."""
        if self._is_told or not self._was_called:
            return
        self._is_told = True
        stats = self._managed.stats()
        say('%s activations of the first step, %s (at most %s at a time), had '
            'memory as the budget allows: %s went below, %s came back',
            f'{stats["activation_tensors"]:,}',
            *(bytes_text(stats[f'activation_{name}bytes'])
              for name in ('', 'peak_', 'written_', 'fetched_')))

    def _called(self, model: torch.nn.Module, call: Callable[..., Any],
                arguments: Any, named: Any) -> Any:
        """What the call answers, whose saved tensors are handed over. However
        it ends, none are from then on."""
        with contextlib.ExitStack() as hooks:
            if torch.is_grad_enabled() and not self._managed.is_closed:
                alone = frozenset(_storages_of(
                    (*model.parameters(), *model.buffers(), arguments, named)))
                # torch.func allows none inside.
                with contextlib.suppress(RuntimeError):
                    hooks.enter_context(saved_tensors_hooks(
                        _Pack(self._pack, alone), self._unpack))
                    hooks.callback(setattr, self, '_was_called', True)
            return call(*arguments, **named)

    def _is_large(self, tensor: torch.Tensor) -> bool:
        return (type(tensor) is torch.Tensor and tensor.nbytes >= self._least
                and not isinstance(_base_of(tensor), torch.nn.Parameter))

    def _pack(self, alone: frozenset[int],
              tensor: torch.Tensor) -> torch.Tensor:
        # Within the operation that saves it, which goes on with it.
        if self._is_large(tensor) and not self._managed.is_closed:
            key = _storage_of(tensor, self._least)
            if key and key not in alone and not is_exported(key):
                self._managed.save_activation(tensor)
        # The one that came may have the operation, and so itself.
        return tensor.detach()

    def _unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_large(tensor):
            self._managed.use_activation(tensor)
        return tensor


class _Pack:
    """Of one call of the model, which leaves its arguments alone."""

    def __init__(self, pack: Callable[[frozenset[int], torch.Tensor],
                                      torch.Tensor],
                 alone: frozenset[int]) -> None:
        self._pack = pack
        self._alone = alone

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._pack(self._alone, tensor)


# Not as others read it: forward would wait for all updates, and what is below
# would be looked at by an operation.
_storage = torch._C.TensorBase.untyped_storage
_address = torch._C.StorageBase.data_ptr
# What it is a view of, or None.
_base_of = torch._C.TensorBase._base.__get__


def _storage_of(tensor: torch.Tensor, least_bytes: int = 0) -> int:
    """The address of its memory; 0: it has none, or none of so many bytes, as
    what is expanded, or it is managed already, whose memory comes and goes."""
    if is_offloaded(tensor):
        return 0
    try:
        storage = _storage(tensor)
        return _address(storage) if storage.nbytes() >= least_bytes else 0
    except (RuntimeError, NotImplementedError):
        return 0


def _storages_of(values: Iterable[Any]) -> Iterable[int]:
    """Of all tensors in it, at any depth."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield _storage_of(value)
        elif isinstance(value, dict):
            yield from _storages_of(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _storages_of(value)


# torch.func refuses to differentiate where hooks of saved tensors are: ours are
# off the thread for as long as it does so inside the model's forward. What it
# saves meanwhile stays in memory.
_aside = Replaced(lambda: [Entry(
    torch.autograd.graph, 'disable_saved_tensors_hooks', _without_ours)])


def _without_ours(disable: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(disable)
    @contextlib.contextmanager
    def disables(error_message: str) -> Iterator[None]:
        taken = _take_off()
        try:
            with disable(error_message):
                yield
        finally:
            for hooks in reversed(taken):
                _autograd._push_saved_tensors_default_hooks(*hooks)
    return disables


def _take_off() -> list[tuple[Any, Any]]:
    """Of this thread; those above the last that is another's."""
    taken = []
    while True:
        hooks = _autograd._top_saved_tensors_default_hooks(True)
        if hooks is None or not isinstance(hooks[0], _Pack):
            return taken
        _autograd._pop_saved_tensors_default_hooks()
        taken.append(hooks)
