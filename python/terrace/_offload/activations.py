"""Tensors that autograd saves in a model's forward lie below until backward
needs them."""

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
    """Hands over each tensor that autograd saves while the model is called, if
    it has a least size. The tensor stays the same for all that have it. The
    model's parameters, buffers and arguments are left alone, and so is a tensor
    whose memory an array of numpy shares, and any view of a parameter:
    fully_shard and FullyShardedDataParallel gather their parameters for a
    module's time, and resize their memory."""

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
        """Tensors that are saved by then are not touched. A second call does
        nothing."""
        calls.end(self._called)
        _aside.end(self)

    def tell(self) -> None:
        """Tells the program once, after the first step with gradients."""
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
        """Answers what the call answers. The tensors that autograd saves in the
        call are handed over; however the call ends, later ones are not."""
        with contextlib.ExitStack() as hooks:
            if torch.is_grad_enabled() and not self._managed.is_closed:
                alone = frozenset(_storages_of(
                    (*model.parameters(), *model.buffers(), arguments, named)))
                # torch.func allows no such hooks inside.
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
        # The operation that saves the tensor goes on with it.
        if self._is_large(tensor) and not self._managed.is_closed:
            key = _storage_of(tensor, self._least)
            if key and key not in alone and not is_exported(key):
                self._managed.save_activation(tensor)
        # The tensor that came may keep the operation, and so itself.
        return tensor.detach()

    def _unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_large(tensor):
            self._managed.use_activation(tensor)
        return tensor


class _Pack:
    """The hook of one call of the model, whose arguments it leaves alone."""

    def __init__(self, pack: Callable[[frozenset[int], torch.Tensor],
                                      torch.Tensor],
                 alone: frozenset[int]) -> None:
        self._pack = pack
        self._alone = alone

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._pack(self._alone, tensor)


# Readers of the table are passed by: through them forward would wait for all
# updates, and an operation would look at what is below.
_storage = torch._C.TensorBase.untyped_storage
_address = torch._C.StorageBase.data_ptr
# The tensor that a tensor is a view of, or None.
_base_of = torch._C.TensorBase._base.__get__


def _storage_of(tensor: torch.Tensor, least_bytes: int = 0) -> int:
    """The address of the tensor's memory. It is 0 where the tensor has no
    memory, or less than so many bytes, as an expanded tensor has, or is managed
    already, so that its memory comes and goes."""
    if is_offloaded(tensor):
        return 0
    try:
        storage = _storage(tensor)
        return _address(storage) if storage.nbytes() >= least_bytes else 0
    except (RuntimeError, NotImplementedError):
        return 0


def _storages_of(values: Iterable[Any]) -> Iterable[int]:
    """The addresses of all tensors in the values, at any depth."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield _storage_of(value)
        elif isinstance(value, dict):
            yield from _storages_of(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _storages_of(value)


# torch.func refuses to differentiate where a thread has hooks of saved tensors.
# Terrace's hooks are off the thread for as long as torch.func does so inside
# the model's forward, and tensors that it saves meanwhile stay in memory.
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
    """This thread's hooks of Terrace that lie above the last hook of another
    owner; the thread has them no more."""
    taken = []
    while True:
        hooks = _autograd._top_saved_tensors_default_hooks(True)
        if hooks is None or not isinstance(hooks[0], _Pack):
            return taken
        _autograd._pop_saved_tensors_default_hooks()
        taken.append(hooks)
