"""Tensors of an offloaded model in ordinary memory."""

from __future__ import annotations

import torch

from terrace._base.amounts import bytes_text
from terrace._base.library import storage_if_offloaded
from terrace._base.message import say


class Copies:
    """Of storages, for the entries of one state_dict()."""

    def __init__(self) -> None:
        self._of: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same view of a copy of its storage; of one that is in ordinary
        memory by now, itself."""
        key = storage_if_offloaded(tensor)
        if not key:
            return tensor
        if key not in self._of:
            _tell_once(tensor)
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = tensor.as_strided((count,), (1,), 0)
            self._of[key] = whole.clone()
        return self._of[key].view(tensor.dtype).as_strided(
            tensor.size(), tensor.stride(), tensor.storage_offset())


_told = False


def _tell_once(tensor: torch.Tensor) -> None:
    global _told
    if not _told:
        _told = True
        say('what pickles tensors of an offloaded model, or asks its '
            'state_dict() for addresses, gets copies in ordinary memory, '
            'beyond the memory_budget (the first is of %s); terrace.save() and '
            'terrace.export_torch() stream',
            bytes_text(tensor.untyped_storage().nbytes()))
