"""Copies of an offloaded model's tensors lie in ordinary memory."""

from __future__ import annotations

import threading

import torch

from terrace._base.amounts import bytes_text
from terrace._base.library import storage_if_offloaded
from terrace._base.message import say


class Copies:
    """Copies of storages, for the entries of one state_dict()."""

    def __init__(self) -> None:
        self._of: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same view of a copy of the tensor's storage, as that is now. A
        tensor that is in ordinary memory by now is answered itself."""
        key = storage_if_offloaded(tensor)
        if not key:
            return tensor
        with torch.no_grad(), self._lock:
            if key not in self._of:
                _tell_once(tensor)
                self._of[key] = _all_of(tensor).clone()
                return _view(self._of[key], tensor)
            view = _view(self._of[key], tensor)
            # The tensor may have been written since, by unseen writers too.
            view.copy_(tensor.detach())
            return view


def _all_of(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)


def _view(whole: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return whole.view(tensor.dtype).as_strided(
        tensor.size(), tensor.stride(), tensor.storage_offset())


_told = False


def _tell_once(tensor: torch.Tensor) -> None:
    global _told
    if not _told:
        _told = True
        say('what asks the state_dict() of an offloaded model for addresses '
            'gets copies in ordinary memory, beyond the memory_budget (the '
            'first is of %s); torch.save(), terrace.save() and '
            'terrace.export_torch() stream',
            bytes_text(tensor.untyped_storage().nbytes()))
