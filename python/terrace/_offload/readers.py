"""What reads a tensor's memory without an operation of torch, while a model is
offloaded: Python's ways to it are watched.

- numpy() holds a lease for as long as its array lives.
- pickling, as torch.save does, takes a copy in ordinary memory.
- data_ptr() of a tensor or a storage raises for what is away, as torch itself
  does from 2.12 on; before, it answers 0 or says nothing of Terrace.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from terrace._base.library import storage_if_offloaded
from terrace._base.replaced import Replaced
from terrace._offload.copies import Copies
from terrace._offload.managed import Managed

_lock = threading.RLock()  # a finalizer may come within
_watched: list[Managed] = []
_replaced = Replaced()  # while one is watched, or within what others replaced

_AWAY = ('terrace: a tensor of an offloaded model is not in memory; operations '
         'bring it, other readers need a lease: with offload.lease(tensor)')


# Arrays of numpy that share memory which is not offloaded: its address, by the
# array. Each change is one operation on the dictionary.
_arrays: dict[int, int] = {}


def is_exported(address: int) -> bool:
    """Whether an array of numpy, made since begin(), has a storage's memory."""
    return bool(_arrays) and address in tuple(_arrays.values())


def _note_exported(tensor: torch.Tensor, array: Any) -> None:
    _arrays[id(array)] = tensor.untyped_storage().data_ptr()
    end = weakref.finalize(array, _arrays.pop, id(array), None)
    end.atexit = False


def begin(managed: Managed) -> None:
    """Until end() of the same."""
    with _lock:
        _watched.append(managed)
        if len(_watched) == 1:
            _watch()


def end(managed: Managed) -> None:
    with _lock:
        _watched.remove(managed)
        if not _watched:
            _replaced.restore()


def _watch() -> None:
    for kind, name, reader in (
            (torch.Tensor, 'numpy', _numpy),
            (torch.Tensor, 'data_ptr', _data_ptr),
            (torch.Tensor, '__reduce_ex__', _reduce_ex),
            (torch.UntypedStorage, 'data_ptr', _address)):
        _replaced.put(kind, name, reader)


def _numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def numpy(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if not _watched:
            return original(self, *arguments, **named)
        if not storage_if_offloaded(self):
            array = original(self, *arguments, **named)
            _note_exported(self, array)
            return array
        with contextlib.ExitStack() as lease:
            for managed in tuple(_watched):
                # The others do not have it.
                with contextlib.suppress(ValueError):
                    lease.enter_context(managed.lease(self, write=True))
            array = original(self, *arguments, **named)
            weakref.finalize(array, lease.pop_all().close)
        return array
    return numpy


def _data_ptr(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def data_ptr(self: torch.Tensor) -> int:
        address = original(self)
        if not _watched:
            return address
        # Before 2.12 that of what is away is its offset.
        offset = self.storage_offset() * self.element_size()
        if address in (0, offset) and storage_if_offloaded(self):
            raise RuntimeError(_AWAY)
        return address
    return data_ptr


def _address(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def data_ptr(self: torch.UntypedStorage) -> int:
        try:
            return original(self)
        except RuntimeError as error:
            if self.device.type != 'cpu' or 'terrace:' in str(error):
                raise
            shown = torch.empty(0, dtype=torch.uint8, device='cpu').set_(self)
            if not storage_if_offloaded(shown):
                raise
            raise RuntimeError(_AWAY) from None
    return data_ptr


def _reduce_ex(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __reduce_ex__(self: torch.Tensor, protocol: Any) -> Any:
        # A parameter's .data comes here by itself.
        if (_watched and type(self) is torch.Tensor
                and storage_if_offloaded(self)):
            return original(Copies().of(self), protocol)
        return original(self, protocol)
    return __reduce_ex__
