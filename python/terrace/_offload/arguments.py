"""What terrace.offload is asked for, and what it cannot do."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from terrace._base import machine
from terrace._base.amounts import budget_bytes
from terrace._base.library import is_offloaded
from terrace._base.local_shard import sharding_of
from terrace._base.paths import check_paths
from terrace._state.settings import Settings


def settings_of(memory_budget: Any, nvme_path: Any, tiers: Any) -> Settings:
    settings = Settings.of_places(memory_budget, nvme_path, tiers,
                                  **machine.settings())
    check_paths(settings.paths, settings.path_name)
    return settings


def check_wishes(parameters: bool, activations: Any, activations_above: Any,
                 checkpoint: Any, init_buffers: Any) -> None:
    """NotImplementedError, with the way out, for what is not built yet."""
    if activations is not False:
        raise NotImplementedError(
            f'terrace: offload(activations={activations!r}) is not built yet: '
            'torch.utils.checkpoint keeps fewer of them in memory')
    if '%' in str(activations_above):
        raise ValueError('terrace: activations_above is bytes or a text as '
                         f'"1MiB", not {activations_above!r}')
    budget_bytes(activations_above, 0)
    if checkpoint is None and init_buffers is not None:
        raise ValueError('terrace: init_buffers goes with checkpoint=..., '
                         'which brings all other buffers')
    if not parameters:
        raise ValueError('terrace: offload(parameters=False) leaves nothing to '
                         'offload')


def check_model(model: Any, is_filled: bool) -> None:
    """Whether all its parameters can be taken over, with their values or,
    where it is not filled, without. The library says the rest of it."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError('terrace: offload takes a torch.nn.Module, not '
                        f'{type(model).__name__}')
    if isinstance(model, DistributedDataParallel):
        raise NotImplementedError(
            'terrace: a model in DistributedDataParallel cannot be offloaded '
            'yet: offload it in one process, without it')
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
        if sharding:
            raise NotImplementedError(
                f"terrace: parameter '{name}' is {sharding}, which cannot be "
                'offloaded yet: offload the model in one process, whole')
        if parameter.device.type not in ('cpu', 'meta'):
            raise NotImplementedError(
                f"terrace: parameter '{name}' is on {parameter.device}; "
                'parameters in CPU memory can be offloaded so far: '
                "model.to('cpu') first")
