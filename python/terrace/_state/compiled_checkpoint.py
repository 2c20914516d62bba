"""A compiled optimizer's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from terrace._base import errors
from terrace._base.errors import check


class CompiledCheckpoint:
    """What Compiled has for checkpoints: saving by one process or, in parts, by
    ranks, and what comes before and after Compiled.load(). Of each tensor it is
    told the place: -1 of one that has no state, -2 of one whose state another
    rank has."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def save(self, directory: str, tensors: Sequence[torch.Tensor],
             names: Sequence[str], places: Sequence[int],
             rest: torch.Tensor) -> int:
        """Returns the bytes of the checkpoint."""
        return int(_said(self._native.save(directory, tensors, names, places,
                                           rest)))

    def begin_save(self, directory: str, rest: torch.Tensor) -> None:
        check(self._native.begin_save(directory, rest))

    def write_part(self, directory: str, tensors: Sequence[torch.Tensor],
                   names: Sequence[str], places: Sequence[int],
                   with_parameters: bool) -> str:
        return _said(self._native.write_part(directory, tensors, names, places,
                                             with_parameters))

    def commit_save(self, parts: Sequence[str]) -> int:
        return int(_said(self._native.commit_save(parts)))

    def end_save(self) -> None:
        self._native.end_save()

    def begin_load(self, directory: str) -> torch.Tensor:
        """Opens a checkpoint; returns what save() was given as `rest`."""
        outcome, rest = self._native.begin_load(directory)
        check(outcome)
        return rest

    def check_fits(self, tensors: Sequence[torch.Tensor],
                   names: Sequence[str], places: Sequence[int]) -> None:
        check(self._native.fits(tensors, names, places))

    def end_load(self) -> None:
        self._native.end_load()


def _said(outcome: errors.Outcome) -> str:
    check(outcome)
    return outcome[1]
