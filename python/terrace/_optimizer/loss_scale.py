"""What torch.amp.GradScaler asks of a step.

It sets `grad_scale` and `found_inf` before and takes them back after a step
that returned, not after one that raised: the next would be scaled by the
square, or skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from terrace._base.groups import Groups
from terrace._state.store import StateStore


def is_left_to_step(groups: Groups, shared: bool) -> bool:
    """Whether a GradScaler leaves unscaling and skipping to step(): where
    torch.optim.AdamW says so; of float16 parameters, whose gradients it does
    not unscale; and where ranks share the state, which skip together, unless
    fused=False says otherwise. What clips in between, as Lightning does, wants
    gradients unscaled."""
    return any(group.get('fused')
               or (shared and group.get('fused') is None)
               or any(p.dtype == torch.float16 for p in group['params'])
               for group in groups)


class LossScale:
    """By which the gradients of the step before were multiplied.

    Attributes:
        is_left_to_step: what a program set; None: see is_left_to_step().
    """

    def __init__(self) -> None:
        self.is_left_to_step: bool | None = None
        self._last = 1.0

    def goes_to_step(self, groups: Groups, store: StateStore | None) -> bool:
        """Whether the next is left to step(), as a GradScaler is told."""
        if store is not None:
            store.check_scaler()
        if self.is_left_to_step is not None:
            return self.is_left_to_step
        return is_left_to_step(groups, store is not None
                               and not store.ranks.alone)

    def asked(self, optimizer: torch.optim.Optimizer,
              store: StateStore) -> tuple[bool, float]:
        """Whether to skip, and the scale. Without a GradScaler 1, but of a
        step that is unfinished the one that it began with."""
        found_inf = getattr(optimizer, 'found_inf', None)
        skip = found_inf is not None and bool(found_inf.item())
        if hasattr(optimizer, 'grad_scale'):
            given = optimizer.grad_scale
            self._last = 1.0 if given is None else float(given)
        elif self._last != 1.0 and not store.is_unfinished():
            self._last = 1.0
        return skip, self._last


class Scaled:
    """An optimizer that a GradScaler may leave unscaling and skipping to."""

    _scale: LossScale
    _store: StateStore | None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by torch.amp.GradScaler; may be set."""
        return self._scale.goes_to_step(self.param_groups, self._store)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, given: bool) -> None:
        self._scale.is_left_to_step = given


def taken_back(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with its hooks, which takes back what was set if one raises.
    torch.compile leaves it as it is: it would follow it into the state."""
    @functools.wraps(step)
    def wrapper(optimizer: torch.optim.Optimizer, *arguments: Any,
                **named: Any) -> Any:
        try:
            return step(optimizer, *arguments, **named)
        except BaseException:
            vars(optimizer).pop('grad_scale', None)
            vars(optimizer).pop('found_inf', None)
            raise
    return torch._disable_dynamo(wrapper)
