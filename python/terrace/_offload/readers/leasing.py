"""While a model is offloaded, readers that are no operation of torch have the
tensors leased that they read. A tensor that is not offloaded is noted while it
is read, so that nobody takes it over as an activation."""

from __future__ import annotations

import contextlib
import weakref

import torch

from terrace._base import raw_readers
from terrace._base.library import give_address, storage_if_offloaded
from terrace._offload.managed import Managed

# Addresses of memory that is not offloaded, until the readings that refer to it
# have ended. Each change is one operation on the dictionary.
_exported: dict[weakref.ref[_Reading], int] = {}


class _Reading:
    """A reading has such memory. An interrupt that loses a reading ends it."""


def _end(reading: _Reading) -> None:
    """Nothing refers to the reading any more."""


def is_exported(address: int) -> bool:
    """Whether a storage's memory is being read, or an array of numpy that was
    made since begin() has it."""
    return bool(_exported) and address in tuple(_exported.values())


class Leasing:
    """A Keeper of raw_readers, for one model's tensors."""

    def __init__(self, managed: Managed) -> None:
        self._managed = managed

    def begin(self) -> None:
        raw_readers.keepers.begin(self)

    def end(self) -> None:
        raw_readers.keepers.end(self)

    def wait(self, tensor: torch.Tensor) -> None:
        """A lease waits. What a placement may still take over has an address
        that somebody knows."""
        if self._managed.has_placed:
            give_address(tensor)

    def hold(self, tensor: torch.Tensor, write: bool,
             held: contextlib.ExitStack) -> None:
        if self._managed.has(tensor):
            held.callback(self._managed.hold(tensor, write).end)
        elif storage_if_offloaded(tensor):
            _check_is_here(tensor)
        elif tensor.device.type == 'cpu' and _has_storage(tensor):
            one = _Reading()
            _exported[weakref.ref(one, _exported.pop)] = _storage(
                tensor).data_ptr()
            held.callback(_end, one)


def _check_is_here(tensor: torch.Tensor) -> None:
    """Raises RuntimeError unless another model has the tensor. A forked child
    has its parent's tensors without their bytes, and so has a program that
    closed a model without restoring them."""
    if any(managed.has(tensor) for managed in Managed.all_open()):
        return
    if storage_if_offloaded(tensor):  # Its model is not being closed now.
        raise RuntimeError(_NOT_HERE)


_NOT_HERE = ('terrace: the bytes of a tensor are not in this process: its '
             'model was offloaded by the one that this was forked from, or '
             'closed with restore=False')
_has_storage = torch._C._has_storage
_storage = torch._C.TensorBase.untyped_storage
