"""What groups and parameters may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from terrace._base.groups import Groups, number_of
from terrace._base.local_shard import local_of, wrapper_fault

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Options of torch.optim.AdamW, which stand in every group: what cannot be
# followed, and what to do instead,
REFUSED = {'amsgrad': 'it keeps a third moment; leave it out',
           'differentiable': 'step() is not recorded by autograd; leave it out'}
# and what says how to compute the same.
IGNORED = ('foreach', 'capturable', 'fused')
# Options that groups of older versions of torch lack.
_SINCE = (*REFUSED, *IGNORED, 'maximize')


def device_types() -> tuple[str, ...]:
    """Where parameters may be: 'cpu', and the accelerator that this torch is
    for, in use or not."""
    accelerator = torch.accelerator.current_accelerator()
    return ('cpu',) if accelerator is None else ('cpu', accelerator.type)


def betas_of(given: Sequence[float | torch.Tensor]
             ) -> tuple[float | torch.Tensor, ...]:
    """As torch.optim.AdamW keeps them."""
    return tuple(beta.squeeze() if isinstance(beta, torch.Tensor) else beta
                 for beta in given)


def check_options(group: dict[str, Any]) -> None:
    """As torch.optim.AdamW, with its texts."""
    beta1, beta2 = group['betas']
    for place, beta in enumerate((beta1, beta2)):
        if isinstance(beta, torch.Tensor) and beta.numel() != 1:
            raise ValueError(f'Tensor betas[{place}] must be 1-element')
    rate = group['lr']
    if isinstance(rate, torch.Tensor) and rate.numel() != 1:
        raise ValueError('Tensor lr must be 1-element')
    if not number_of(rate, 'lr') >= 0:
        raise ValueError(f'Invalid learning rate: {rate}')
    if not group['eps'] >= 0:
        raise ValueError(f'Invalid epsilon value: {group["eps"]}')
    if not 0 <= float(beta1) < 1:
        raise ValueError(f'Invalid beta parameter at index 0: {beta1}')
    if not 0 <= float(beta2) < 1:
        raise ValueError(f'Invalid beta parameter at index 1: {beta2}')
    if not group['weight_decay'] >= 0:
        raise ValueError(f'Invalid weight_decay value: {group["weight_decay"]}')
    if group.get('fused') and group.get('foreach'):
        raise RuntimeError('`fused` and `foreach` cannot be `True` together.')
    check_followed(group)


def complete(group: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """As torch of today has it."""
    for key in _SINCE:
        group.setdefault(key, defaults[key])


def complete_all(groups: Groups, defaults: Mapping[str, Any],
                 decoupled: bool) -> None:
    """Of a loaded state_dict(). ValueError, NotImplementedError: options."""
    for group in groups:
        complete(group, defaults)
        check_options(group)
        group['decoupled_weight_decay'] = decoupled


def check_followed(group: Mapping[str, Any]) -> None:
    """Scripts may set what they like in a group, at any time."""
    for key, why in REFUSED.items():
        if group.get(key):
            raise NotImplementedError(
                f'terrace: {key}=True is not supported: {why}')


def norm_of(max_grad_norm: float | None) -> float:
    """0: no clipping."""
    if max_grad_norm is not None and not 0 < max_grad_norm < math.inf:
        raise ValueError('terrace: max_grad_norm is a positive number or None, '
                         f'not {max_grad_norm}')
    return float(max_grad_norm or 0)


def check_group(group: dict[str, Any], names: Sequence[str]) -> None:
    check_options(group)
    for name, parameter in zip(names, group['params'], strict=True):
        check_parameter(name, parameter)


def check_parameter(name: str, parameter: torch.Tensor) -> None:
    if is_lazy(parameter):
        return  # looked at with its first gradient
    if parameter.is_complex():
        what = f'is complex ({parameter.dtype}); step torch.view_as_real of it'
    elif parameter.layout != torch.strided:
        what = f'is {parameter.layout}; only dense ones can be stepped'
    elif wrapper_fault(parameter):
        what = wrapper_fault(parameter)
    elif parameter.device.type not in device_types():
        what = (f'is on {parameter.device}; only memory of the CPU and of an '
                'accelerator is supported')
    elif parameter.dtype not in DTYPES:
        what = (f'is {parameter.dtype}; float32, bfloat16 and float16 are '
                'supported')
    elif torch._debug_has_internal_overlap(local_of(parameter)) == 1:
        what = 'has elements that share memory'
    else:
        return
    raise NotImplementedError(f"terrace: parameter '{name}' {what}")
