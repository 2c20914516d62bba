"""Copies of state that is larger than memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from terrace._base import library
from terrace._base.arrays import state_bytes
from terrace._base.errors import check
from terrace._base.message import say
from terrace._state.settings import Settings

# Less of state is copied into memory.
_MAPPED_BYTES = 32 << 20


class CopyFile:
    """An unnamed file on one of an optimizer's paths, for the state of some
    parameters; tensors are mapped from it, and with the last of them, or with
    the process, it is gone."""

    def __init__(self, directories: Sequence[str],
                 parameters: Sequence[torch.Tensor]) -> None:
        """Reserves the bytes. OSError: no directory has room for them.
        NotImplementedError: none has files that can be mapped."""
        self.native = library.new_mapped_file()
        check(self.native.open(directories, parameters))

    @staticmethod
    def of(settings: Settings,
           parameters: Sequence[torch.Tensor]) -> CopyFile | None:
        """None: their copies are to be in memory."""
        if not is_wanted(settings, sum(map(state_bytes, parameters))):
            return None
        try:
            return CopyFile(settings.directories, parameters)
        except NotImplementedError as error:
            say('the state is copied into memory: %s',
                str(error).removeprefix('terrace: '))
            return None

    def empty(self, shape: Sequence[int]) -> torch.Tensor:
        """The next float32 tensor."""
        outcome, tensor = self.native.take(shape)
        check(outcome)
        return tensor


def is_wanted(settings: Settings, size: int) -> bool:
    """For copies of so many bytes."""
    return size >= _MAPPED_BYTES and bool(settings.directories)
