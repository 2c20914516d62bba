"""This is the one table of Python's ways to a tensor's memory that go past the
dispatcher, where neither a hook nor an update that goes on sees them.

While there is a Keeper such a reader waits for updates of the tensor, and then
has it leased:

- Most readers have it while they are called.
- An answer of numpy(), of DLPack, or of a slice of a storage has it for as long
  as the answer lives.
- An address is a number, which leases nothing. Asking a tensor that is away for
  its address is an error, as in torch itself from 2.12 on, unless a copy was
  named that has one. torch.save asks for an address only to tell one storage
  from another, and writes each storage by an entry of the table. torch's guard
  of saved tensors asks for the same reason; an address that comes and goes
  would be another tensor there.
- A function that gives a storage other memory refuses an offloaded one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from terrace._base.library import storage_if_offloaded
from terrace._base.replaced import Entry, Replaced

_AWAY = ('terrace: a tensor of an offloaded model is not in memory; operations '
         'bring it, other readers need a lease: with offload.lease(tensor)')
_OTHER_MEMORY = ('terrace: %s() gives a storage other memory, and this one is '
                 'of an offloaded model: do that to a copy, as of '
                 'tensor.clone(), or close() the Offload before')


class Keeper(Protocol):
    """A keeper's tensors may not be read at any time."""

    def wait(self, tensor: torch.Tensor) -> None:
        """Waits until no update of the tensor goes on."""

    def hold(self, tensor: torch.Tensor, write: bool,
             held: contextlib.ExitStack) -> None:
        """The tensor's bytes stay in memory until `held` is closed, as far as
        the keeper has a say in that."""


class Copied(Protocol):
    """Copies of storages in ordinary memory."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same view of the storage's copy."""


def with_address(storage: torch.UntypedStorage, copied: Copied
                 ) -> torch.UntypedStorage:
    """The same storage. While it is offloaded and the copies exist, its address
    is that of its copy."""
    storage.copied_by = weakref.ref(copied)
    return storage


def _reader(owner: Any, name: str, make: Callable[..., Callable[..., Any]],
            write: bool = False) -> Entry:
    """`write` says whether the reader writes its first argument; it reads the
    others."""
    return Entry(owner, name, functools.partial(make, write=write))


def _table() -> Iterator[Entry]:
    tensor, storage = torch.Tensor, torch.UntypedStorage
    for name in ('apply_', 'map_', 'map2_'):
        yield _reader(tensor, name, _while_called, write=True)
    yield _reader(tensor, 'tolist', _while_called)
    yield _reader(tensor, 'numpy', _while_array_lives, write=True)
    for owner in (torch._C, torch.utils.dlpack):
        for name in ('_to_dlpack', '_to_dlpack_versioned', 'to_dlpack'):
            yield _reader(owner, name, _while_capsule_lives, write=True)
    for owner in (tensor, storage):
        yield _reader(owner, 'data_ptr', _address)
    for name in ('__setitem__', 'fill_', 'copy_', '_byteswap',
                 '_set_from_file'):
        yield _reader(storage, name, _while_called, write=True)
    for name in ('clone', '_to', '_write_file'):
        yield _reader(storage, name, _while_called)
    yield _reader(storage, '__getitem__', _while_slice_lives, write=True)
    for name in ('tolist', '__iter__'):
        yield _reader(storage, name, _from_an_array)
    yield _reader(torch._C.PyTorchFileWriter, 'write_record', _while_called)
    for name in ('resize_', '_share_fd_cpu_', '_share_filename_cpu_'):
        yield _reader(storage, name, _with_other_memory, write=True)


def _while_called(original: Callable[..., Any], write: bool
                  ) -> Callable[..., Any]:
    @functools.wraps(original)
    def reader(*arguments: Any, **named: Any) -> Any:
        with _held((*arguments, *named.values()), write):
            return original(*arguments, **named)
    return reader


def _while_array_lives(original: Callable[..., Any], write: bool
                       ) -> Callable[..., Any]:
    @functools.wraps(original)
    def numpy(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        with _held((self,), write) as held:
            array = original(self, *arguments, **named)
            _close_with(array, held.pop_all())
        return array
    return numpy


def _while_capsule_lives(original: Callable[..., Any], write: bool
                         ) -> Callable[..., Any]:
    @functools.wraps(original)
    def dlpack(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        with _held((tensor,), write) as held:
            if keepers.users and storage_if_offloaded(tensor):
                whole = _lent(bytes_of(tensor.untyped_storage()), held)
                tensor = whole.view(tensor.dtype).as_strided(
                    tensor.size(), tensor.stride(), tensor.storage_offset())
            return original(tensor, *arguments, **named)
    return dlpack


def _while_slice_lives(original: Callable[..., Any], write: bool
                       ) -> Callable[..., Any]:
    @functools.wraps(original)
    def __getitem__(self: torch.UntypedStorage, index: Any) -> Any:
        is_slice = isinstance(index, slice)
        with _held((self,), write and is_slice) as held:
            if is_slice and _is_offloaded(self):
                self = _lent(bytes_of(self), held).untyped_storage()
            return original(self, index)
    return __getitem__


def _from_an_array(original: Callable[..., Any], write: bool
                   ) -> Callable[..., Any]:
    """A reader that takes the elements one by one."""
    @functools.wraps(original)
    def reader(self: torch.UntypedStorage) -> Any:
        with _held((self,), write) as held:
            if not _is_offloaded(self):
                return original(self)
            array = memoryview(_lent(bytes_of(self), held).numpy())
        return getattr(array, original.__name__)()
    return reader


def _address(original: Callable[..., int], write: bool) -> Callable[..., int]:
    @functools.wraps(original)
    def data_ptr(self: torch.Tensor | torch.UntypedStorage) -> int:
        if not keepers.users:
            return original(self)
        told_apart = _told_apart(self)
        if told_apart:
            return told_apart
        copied = getattr(self, 'copied_by', _no_copies)()
        if copied is not None and _is_offloaded(self):
            return copied.of(bytes_of(self)).data_ptr()
        _wait(self)
        try:
            address = original(self)
        except RuntimeError as error:  # The storage is away.
            if 'terrace:' in str(error) or not _is_offloaded(self):
                raise
            address = 0
        # Before 2.12 the address of a tensor that is away is its offset.
        if address in (0, _offset_of(self)) and _is_offloaded(self):
            raise RuntimeError(_AWAY)
        return address
    return data_ptr


def _with_other_memory(original: Callable[..., Any], write: bool
                       ) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(self: torch.UntypedStorage, *arguments: Any,
                **named: Any) -> Any:
        if _is_offloaded(self):
            raise RuntimeError(_OTHER_MEMORY % original.__name__)
        with _held((self,), write):
            return original(self, *arguments, **named)
    return refused


@contextlib.contextmanager
def _held(values: Iterable[Any], write: bool
          ) -> Iterator[contextlib.ExitStack]:
    """Holds all tensors and storages among the values, until the stack ends
    here or wherever the caller moves it."""
    with contextlib.ExitStack() as held:
        for index, value in enumerate(values if keepers.users else ()):
            if isinstance(value, torch.UntypedStorage):
                value = bytes_of(value)
            if isinstance(value, torch.Tensor):
                _wait(value)
                for keeper in keepers.users:
                    keeper.hold(value, write and index == 0, held)
        yield held


def _wait(value: torch.Tensor | torch.UntypedStorage) -> None:
    if isinstance(value, torch.UntypedStorage):
        value = bytes_of(value)
    for keeper in keepers.users:
        keeper.wait(value)


def _is_offloaded(value: torch.Tensor | torch.UntypedStorage) -> bool:
    if not keepers.users:
        return False
    if isinstance(value, torch.UntypedStorage):
        if value.device.type != 'cpu':
            return False
        value = bytes_of(value)
    return storage_if_offloaded(value) != 0


def _no_copies() -> None:
    """Stands for the copies of a storage that has none."""


def _told_apart(value: torch.Tensor | torch.UntypedStorage) -> int:
    """A number that stands for the address of an offloaded tensor or storage
    where a caller only tells one from another: torch.save does so of storages,
    torch's allow_mutation_on_saved_tensors of tensors. Else 0."""
    caller = sys._getframe(2).f_globals
    if caller is vars(torch.serialization):
        is_one = (isinstance(value, torch.UntypedStorage)
                  and _is_offloaded(value))
        return _identity_of(value) if is_one else 0
    if caller is vars(torch.autograd.graph) and isinstance(value, torch.Tensor):
        storage = storage_if_offloaded(value)
        # The number lies beyond any address.
        return storage and (storage << 64) + _offset_of(value)
    return 0


def _offset_of(value: torch.Tensor | torch.UntypedStorage) -> int:
    if isinstance(value, torch.UntypedStorage):
        return 0
    return value.storage_offset() * value.element_size()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of the storage, whatever mode the program is in."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return empty.set_(storage)


def _lent(whole: torch.Tensor, held: contextlib.ExitStack) -> torch.Tensor:
    """The same memory in a storage of its own, which takes over the stack that
    holds it."""
    array = _numpy(whole)
    _close_with(array, held.pop_all())
    return torch.from_numpy(array)


def _close_with(array: Any, held: contextlib.ExitStack) -> None:
    """Closes `held` once the array has ended. At the end of the process nothing
    is to be done."""
    weakref.finalize(array, held.close).atexit = False


# Each user is a Keeper.
keepers = Replaced(_table)
_numpy = torch._C.TensorBase.numpy
_identity_of = torch._C.StorageBase._cdata.__get__
