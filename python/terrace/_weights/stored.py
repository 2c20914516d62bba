"""A tensor in a file."""

from __future__ import annotations

import dataclasses
import errno
import os

import torch

from terrace._weights.regular_file import descriptor_of

_PIECE = 1 << 20  # elements of another dtype that are in memory at a time


@dataclasses.dataclass(frozen=True)
class Stored:
    """Contiguous, in little-endian bytes from `offset` on.

    Attributes:
        path: of the file.
        name: of the tensor there, for messages.
    """

    path: str
    name: str
    dtype: torch.dtype
    shape: torch.Size
    offset: int

    @property
    def size_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def read(self, target: torch.Tensor) -> None:
        """Into a tensor of that shape in CPU memory, of its own dtype.

        Raises OSError, with errno and filename; ValueError: the file is no
        regular one any more."""
        with descriptor_of(self.path) as descriptor:
            try:
                self._read(descriptor, target)
            except OSError as error:
                raise OSError(error.errno, f"terrace: '{self.name}': "
                              f'{error.strerror}', self.path) from error

    def _read(self, descriptor: int, target: torch.Tensor) -> None:
        whole = (target if target.is_contiguous() else
                 torch.empty(target.shape, dtype=target.dtype, device='cpu'))
        flat = whole.view(-1)
        if target.dtype == self.dtype:
            self._fill(descriptor, flat, 0)
        else:
            buffer = torch.empty(min(_PIECE, flat.numel()), dtype=self.dtype,
                                 device='cpu')
            for first in range(0, flat.numel(), _PIECE):
                part = buffer[:min(_PIECE, flat.numel() - first)]
                self._fill(descriptor, part, first)
                flat[first:first + part.numel()].copy_(part)
        if whole is not target:
            target.copy_(whole)

    def _fill(self, descriptor: int, target: torch.Tensor, first: int) -> None:
        """Elements from the first on; os.preadv leaves out no error."""
        if target.numel() == 0:
            return
        left = memoryview(target.view(torch.uint8).numpy())
        offset = self.offset + first * self.dtype.itemsize
        while left:
            count = os.preadv(descriptor, [left], offset)
            if count == 0:
                raise OSError(errno.EIO, f'the file has no byte {offset}')
            left, offset = left[count:], offset + count
