"""A compiled optimizer's step whose gradients come one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from terrace._base import errors
from terrace._base.errors import check


class CompiledGradual:
    """What Compiled has for such a step: begin(), supply() for each parameter,
    end_supply(), and finish() or give_up()."""

    def __init__(self, native: Any,
                 change: Callable[..., errors.Outcome]) -> None:
        """`change` calls by name what may change the steps."""
        self._native = native
        self._change = change

    def begin(self, parameters: Sequence[torch.Tensor], group_of: torch.Tensor,
              numbers: Sequence[float], order: Sequence[int]) -> None:
        """Arguments as of Compiled.step(), and the places of those that are
        stepped, as their gradients are expected."""
        check(self._change('begin_gradual', parameters, group_of, numbers,
                           order))

    def supply(self, place: int, parameter: torch.Tensor) -> None:
        """Takes the gradient of one, which is then None, and goes on."""
        check(self._native.supply(place, parameter))

    def end_supply(self) -> None:
        """No more gradients come."""
        check(self._native.end_supply())

    def finish(self) -> None:
        """Waits until the step is done."""
        check(self._change('finish_gradual'))

    def give_up(self, why: str) -> None:
        """The step has failed, and with it the optimizer. Again: nothing."""
        check(self._change('give_up_gradual', why))
