"""The arguments of terrace.offload are read here, and those are refused that
it cannot do."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from terrace._base import machine
from terrace._base.amounts import budget_bytes
from terrace._base.library import is_offloaded
from terrace._base.local_shard import sharding_of
from terrace._base.paths import check_paths
from terrace._state.budget import Budget
from terrace._state.settings import Settings


def settings_of(memory_budget: Any, nvme_path: Any, tiers: Any,
                daemon: Any) -> Settings:
    settings = Settings.of_places(memory_budget, nvme_path, tiers, daemon,
                                  **machine.settings())
    check_paths(settings.paths, settings.path_name)
    return settings


def with_device(settings: Settings, model: Any, hbm_budget: Any = None,
                asked_device: Any = None) -> Settings:
    """The model's device has its memory above all else: as the tiers say, or
    so much of it as `hbm_budget` says. A model on the meta device comes to the
    device that was asked for, or that the tiers name."""
    if not isinstance(model, torch.nn.Module):
        return settings  # which is said later
    device = _device_of(model, asked_device) or (
        settings.device if _is_meta(model) else '')
    if hbm_budget is not None:
        if settings.device or settings.budget.tier or settings.daemon:
            raise ValueError(
                'terrace: hbm_budget beside '
                f'{"daemon" if settings.daemon else "tiers"}: '
                'these say it all')
        if not device:
            raise ValueError('terrace: hbm_budget: the model is in CPU memory, '
                             'and on no device'
                             + ('; device= says where it is to be'
                                if _is_meta(model) else ''))
        try:
            budget_bytes(hbm_budget, 2**20)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace('memory_budget',
                                                 'hbm_budget')) from None
        return dataclasses.replace(settings, device=device,
                                   device_budget=Budget(
                                       hbm_budget, argument='hbm_budget'))
    if device and not settings.device:
        raise ValueError(
            f'terrace: the model is on {device}: tiers begins with '
            f'"hbm:{device}=20GiB", or hbm_budget="30%" says how much of its '
            'memory the parameters have')
    if settings.device and device != settings.device:
        raise ValueError(f'terrace: tier "hbm:{settings.device}": the model is '
                         f'{"on " + device if device else "in CPU memory"}')
    return settings


def _is_meta(model: torch.nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def _device_of(model: torch.nn.Module, asked: Any) -> str:
    """The accelerator on which the model is, or is to be; '' for none."""
    found = next((str(parameter.device) for parameter in model.parameters()
                  if parameter.device.type not in ('cpu', 'meta')), '')
    if asked is None:
        return found
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise type(error)(f'terrace: device={asked!r}: {error}') from None
    text = '' if device.type == 'cpu' else f'{device.type}:{device.index or 0}'
    if _is_meta(model) or text == found:
        return text
    raise ValueError(f'terrace: device={asked!r}: the model is on '
                     f'{found or "the CPU"}; model.to() moves it, and device= '
                     'says where checkpoint= brings one from the meta device')


def with_activations(settings: Settings, activations: Any,
                     activations_above: Any = '1MiB') -> Settings:
    return dataclasses.replace(settings, activations_above=_least_activation(
        activations, activations_above, settings))


def _least_activation(activations: Any, activations_above: Any,
                      settings: Settings) -> int:
    """The bytes of the smallest activation that goes below; 0 where activations
    stay in memory."""
    if '%' in str(activations_above):
        raise ValueError('terrace: activations_above is bytes or a text as '
                         f'"1MiB", not {activations_above!r}')
    try:
        least = budget_bytes(activations_above, 0)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace(
            'memory_budget', 'activations_above')) from None
    if activations == 'dram' and settings.device:
        activations = True
    if activations == 'dram':
        raise ValueError("terrace: activations='dram': the model is on the "
                         'CPU, and its activations are in memory already; '
                         'True moves them to the tier below')
    if not isinstance(activations, bool):
        raise ValueError('terrace: activations is True or False, not '
                         f'{activations!r}')
    if not activations:
        return 0
    if not settings.has_below:
        raise ValueError('terrace: activations=True needs a tier below memory: '
                         'nvme_path=..., tiers=... or daemon=...')
    return least or 1


def check_wishes(parameters: bool, activations: bool, checkpoint: Any,
                 init_buffers: Any) -> None:
    """Raises ValueError for arguments that cannot be given together."""
    if checkpoint is not None and not parameters:
        raise ValueError('terrace: checkpoint= brings parameters below, and '
                         'parameters=False leaves them in memory')
    if checkpoint is None and init_buffers is not None:
        raise ValueError('terrace: init_buffers goes with checkpoint=..., '
                         'which brings all other buffers')
    if not parameters and not activations:
        raise ValueError('terrace: offload(parameters=False) leaves nothing to '
                         'offload')


def check_model(model: Any, is_filled: bool, keeps: bool) -> None:
    """Raises what keeps the model from being offloaded. `is_filled` says
    whether its parameters have values to be taken over; a model that `keeps`
    its parameters in memory may have sharded ones. The library checks the
    rest."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError('terrace: offload takes a torch.nn.Module, not '
                        f'{type(model).__name__}')
    if isinstance(model, torch.jit.ScriptModule):
        raise NotImplementedError(
            'terrace: a ScriptModule cannot be offloaded yet: offload the '
            'module that it was made of')
    if isinstance(model, DistributedDataParallel):
        raise NotImplementedError(
            'terrace: a model in DistributedDataParallel cannot be offloaded '
            'yet: offload it before it is wrapped')
    first: tuple[str, torch.device] | None = None
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"terrace: parameter '{name}' has no shape yet: call the "
                'model once, then offload it')
        if is_offloaded(parameter):
            raise RuntimeError(
                f"terrace: parameter '{name}' is offloaded already: close() "
                'that Offload first')
        if parameter.device.type == 'meta' and is_filled:
            raise ValueError(
                f"terrace: parameter '{name}' is on the meta device and has "
                'no values: checkpoint= brings them from a file')
        sharding = sharding_of(parameter)
        if sharding and not keeps:
            raise NotImplementedError(
                f"terrace: parameter '{name}' is {sharding}, which cannot be "
                'offloaded yet: offload the model in one process, whole, or '
                'its activations alone, with parameters=False')
        if parameter.device.type not in ('cpu', 'meta') and keeps:
            raise NotImplementedError(
                f"terrace: parameter '{name}' is on {parameter.device}: "
                'activations of models in CPU memory alone go below so far '
                'where the parameters do not')
        first = first or (name, parameter.device)
        if parameter.device != first[1]:
            raise ValueError(
                f"terrace: parameter '{name}' is on {parameter.device}, and "
                f"'{first[0]}' on {first[1]}: a model is offloaded on one "
                'device')
