"""What torch.amp.GradScaler asks of a step.

It sets `grad_scale` and `found_inf` before and takes them back after a step
that returned, not after one that raised: the next would be scaled by the
square, or skipped.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from terrace._optimizer import AdamW


def asked(optimizer: AdamW) -> tuple[bool, float]:
    """Whether to skip, and the loss scale. Without a GradScaler 1, but of a
    step that is unfinished the one that it began with."""
    found_inf = getattr(optimizer, 'found_inf', None)
    skip = found_inf is not None and bool(found_inf.item())
    if hasattr(optimizer, 'grad_scale'):
        given = optimizer.grad_scale
        optimizer._scale = 1.0 if given is None else float(given)
    elif optimizer._scale != 1.0 and not _is_unfinished(optimizer):
        optimizer._scale = 1.0
    return skip, optimizer._scale


def taken_back(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with its hooks, which takes back what was set if one raises."""
    @functools.wraps(step)
    def wrapper(optimizer: AdamW, *arguments: Any, **named: Any) -> Any:
        try:
            return step(optimizer, *arguments, **named)
        except BaseException:
            vars(optimizer).pop('grad_scale', None)
            vars(optimizer).pop('found_inf', None)
            raise
    return wrapper


def _is_unfinished(optimizer: AdamW) -> bool:
    if not optimizer._ranks.alone and optimizer._native.stepped:
        return True
    return json.loads(optimizer._native.describe()).get('incomplete', False)
