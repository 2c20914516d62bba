"""terrace.clip_grad_norm_."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch.nn.utils import get_total_norm


@torch.no_grad()
def clip_grad_norm_(parameters: torch.Tensor | Iterable[torch.Tensor],
                    max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False,
                    foreach: bool | None = None) -> torch.Tensor:
    """Clips the norm of all gradients together, as
    torch.nn.utils.clip_grad_norm_ does with foreach=False, bit for bit. It
    takes one gradient at a time, so that no more than one gradient of an
    offloaded model has to be in memory.

    Each gradient is read once; where the norm is too large, it is read and
    written once more. AdamW(max_grad_norm=...) does that in the pass over the
    gradients which its step makes anyway.

    Args:
        parameters: a tensor, or an iterable of tensors, offloaded or not, on
            any devices. A parameter without a gradient counts for nothing.
        max_norm: the norm that the gradients have at most from here on.
        norm_type: the kind of norm; `inf` is the largest element.
        error_if_nonfinite: True: a norm that is nan or inf is a RuntimeError,
            and nothing is changed. False: the gradients are scaled by it.
        foreach: it makes no difference.

    Returns the norm that the gradients had.
    """
    is_generator = False
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    else:
        is_generator = not isinstance(parameters, (list, tuple))
        parameters = list(parameters)
    if is_generator and not parameters:
        warnings.warn('terrace: clip_grad_norm_ of no parameters at all: a '
                      'generator may be used up', stacklevel=2)
    gradients = [parameter.grad for parameter in parameters
                 if parameter.grad is not None]
    norm = get_total_norm(gradients, float(norm_type), error_if_nonfinite,
                          foreach=False)
    scale = torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0)
    # A scale of 1 would write each gradient, and write it back, for nothing.
    if type(scale) is torch.Tensor and scale.is_cpu and scale == 1:
        return norm
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return norm
