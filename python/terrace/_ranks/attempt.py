"""A step that all ranks make together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch


class Attempt:
    """What tells a step from another: its parameters, its numbers, and a digest
    of its gradients, which is made only of a step that is to be repeated."""

    def __init__(self, parameters: Sequence[torch.Tensor],
                 numbers: Sequence[float], scale: float) -> None:
        self.parameters = parameters
        self.scale = scale
        self._numbers = list(numbers)
        self._digest: bytes | None = None

    def remember_gradients(self) -> None:
        """Makes the digest: reads all gradients, a block at a time in CPU
        memory."""
        digest = hashlib.sha256()
        for position, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if (gradient is None or gradient.layout != torch.strided
                    or gradient.numel() == 0):
                continue
            digest.update(f'{position} {gradient.dtype}'.encode())
            for part in gradient.detach().reshape(-1).split(1 << 22):
                digest.update(part.cpu().resolve_neg().view(torch.uint8)
                              .numpy())
        self._digest = digest.digest()

    def is_repeated_by(self, other: Attempt) -> bool:
        other.remember_gradients()
        return (self._numbers == other._numbers and self.scale == other.scale
                and self._digest == other._digest)
