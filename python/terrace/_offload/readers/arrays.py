"""Arrays of numpy and DLPack that were made before a model is offloaded. They
point into the memory that its parameters have then, and keep it: they show what
they showed before, and the model writes to other memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from terrace._base.groups import Named
from terrace._base.library import exchange_memory, uses_of
from terrace._base.message import say
from terrace._base.raw_readers import bytes_of
from terrace._base.watched.tensor import WatchedTensor


@contextlib.contextmanager
def left_their_memory(named: Sequence[Named]) -> Iterator[None]:
    """Within this context the tensors are offloaded. Where an array may have
    the memory of a tensor, the tensor has a copy from then on, unless the
    context ends by an error."""
    copied: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    with torch._C.DisableTorchFunctionSubclass():
        suspects = _suspects(named)
        _find_tensors(suspects)
    try:
        for suspect in suspects.values():
            holders, is_unseen = suspect.holders(), suspect.is_unseen()
            if not holders and not is_unseen:
                continue
            tensor = suspect.tensor
            memory = bytes_of(_storage(tensor)).clone()
            exchange_memory(suspect.name, tensor, memory)
            copied.append((suspect.name, tensor, memory))
            for holder in holders:
                weakref.finalize(holder, _drop, memory).atexit = False
            if is_unseen:
                _unseen[id(memory)] = (WatchedTensor(tensor), suspect.seen,
                                       memory)
            say("'%s': an array that was made before may have its %d bytes, "
                'which stay in memory for as long as that lives', suspect.name,
                memory.nbytes)
        yield
    except BaseException:
        for name, tensor, memory in copied:
            exchange_memory(name, tensor, memory)
        raise


def end_unused() -> None:
    """Drops memory whose holders have ended. Nothing tells of the end of a
    holder by DLPack, so that this is asked for in each step."""
    for key, (of, seen, _) in tuple(_unseen.items()):
        tensor = of()
        if tensor is None or not _uses(tensor).exceed(seen):
            _unseen.pop(key, None)


class _Uses(NamedTuple):
    """Counts how many tensors have a storage, and how many holders the tensor
    itself has."""

    storage: int
    tensor: int

    def exceed(self, seen: _Uses) -> bool:
        return self.storage > seen.storage or self.tensor > seen.tensor


class _Suspect:
    """A storage of the model's tensors that others may have too: an array
    refers to a tensor that torch has made for it, or to one that the program
    gave, which the collector of Python knows or does not know."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor = tensor
        self.own: set[int] = set()  # The ids of the model's tensors.
        self.known: list[torch.Tensor] = []  # All that Python knows.

    @property
    def seen(self) -> _Uses:
        """The uses that Python knows of."""
        views = sum(_base_of(each) is self.tensor for each in self.known)
        return _Uses(len(self.known), 1 + views)

    def is_one(self) -> bool:
        return (not _storage(self.tensor).resizable()
                or self._is_used_beyond(_Uses(len(self.own), 1)))

    def is_unseen(self) -> bool:
        """Whether a holder that Python does not know may have an array."""
        return self._is_used_beyond(self.seen)

    def _is_used_beyond(self, seen: _Uses) -> bool:
        uses = _uses(self.tensor)
        if self.tensor.requires_grad:  # Autograd has it; no array can.
            return uses.storage > seen.storage
        return uses.exceed(seen)

    def holders(self) -> list[torch.Tensor]:
        """An array ends with these tensors."""
        viewed = {id(_base_of(each)) for each in self.known}
        others = [each for each in self.known
                  if id(each) not in self.own and id(each) not in viewed]
        return list(_held_beside_containers(others))


def _suspects(named: Sequence[Named]) -> dict[int, _Suspect]:
    """The suspects, by the identity of their storages."""
    all_of: dict[int, _Suspect] = {}
    for name, tensor in named:
        if _has_storage(tensor) and tensor.device.type == 'cpu':
            one = all_of.setdefault(_identity_of(_storage(tensor)),
                                    _Suspect(name, tensor))
            one.own.add(id(tensor))
    return {identity: one for identity, one in all_of.items() if one.is_one()}


def _find_tensors(suspects: dict[int, _Suspect]) -> None:
    for each in gc.get_objects() if suspects else ():
        if not issubclass(type(each), torch.Tensor):
            continue
        # A program's own kinds of tensors may have no storage.
        with contextlib.suppress(RuntimeError):
            suspect = suspects.get(_identity_of(_storage(each)))
            if suspect is not None:
                suspect.known.append(each)


def _held_beside_containers(tensors: list[torch.Tensor]
                            ) -> Iterator[torch.Tensor]:
    """The tensors to which an object refers that the collector does not know,
    as it does not know arrays of numpy."""
    counts = {id(each): 0 for each in tensors}
    for holder in gc.get_objects() if counts else ():
        for each in gc.get_referents(holder):
            if id(each) in counts:
                counts[id(each)] += 1
    for each in tensors:
        # The collector knows the list that this function is given.
        if sys.getrefcount(each) - 2 > counts[id(each)]:
            yield each


def _uses(tensor: torch.Tensor) -> _Uses:
    held = _storage(tensor)  # It counts, and would count if it were not held.
    of_storage, of_tensor = uses_of(tensor)
    del held
    return _Uses(of_storage - 1, of_tensor - _uses_in_a_call())


@functools.cache
def _uses_in_a_call() -> int:
    """The uses, beside Python's own, of a tensor that has no others."""
    return uses_of(torch.empty(0))[1] - 1


def _drop(memory: torch.Tensor) -> None:
    """Nothing refers to it any more."""


# Memory whose holders end unheard: the model's tensor, the uses of it that are
# no array, and the memory.
_unseen: dict[int, tuple[WatchedTensor, _Uses, torch.Tensor]] = {}
_has_storage = torch._C._has_storage
# Through the table of readers this would wait for updates.
_storage = torch._C.TensorBase.untyped_storage
_identity_of = torch._C.StorageBase._cdata.__get__
_base_of = torch._C.TensorBase._base.__get__
