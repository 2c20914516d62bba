"""The part of a DTensor that is in this process.

torch.distributed.tensor.DTensor, of which fully_shard makes its parameters, is
one tensor over the processes of a mesh; each has a shard of it, or all of it,
as its placements say. AdamW looks at one element at a time, so each process
steps its shard as it would a tensor of that size, and keeps its state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import torch

from terrace._base.groups import Named
from terrace._base.library import is_offloaded

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# What FullyShardedDataParallel sets on its parameters.
_PART_OF_FLAT = '_fsdp_flattened'
_CHECKPOINT = ('torch.distributed.checkpoint with get_state_dict() and '
               'set_state_dict() of torch.distributed.checkpoint.state_dict')


def is_dtensor(tensor: object) -> bool:
    """Without importing what would make one, which takes its time."""
    if type(tensor) in _PLAIN:
        return False
    kind = getattr(sys.modules.get('torch.distributed.tensor'), 'DTensor', ())
    return isinstance(tensor, kind)


def sharding_of(tensor: torch.Tensor) -> str:
    """What makes it a part of something; '' of what is whole. Those of
    FullyShardedDataParallel are plain tensors over a part of a flat one."""
    if is_dtensor(tensor):
        return 'a DTensor'
    if getattr(tensor, _PART_OF_FLAT, False):
        return 'sharded by FullyShardedDataParallel'
    return ''


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its shard, over the same memory; of other tensors themselves."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        shard = tensor.to_local()
    # Of a collective that is under way.
    return shard.wait() if hasattr(shard, 'wait') else shard


def locals_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [local_of(tensor) for tensor in tensors]


def local_to_step(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """Its shard with, as gradient, that part of its gradient. Where that is
    placed otherwise the ranks of the mesh exchange it, as torch's optimizers
    do. ValueError: it is no gradient of a DTensor."""
    gradient = parameter.grad
    if not is_dtensor(parameter):
        return parameter
    shard = local_of(parameter).detach()
    if gradient is None:
        return shard
    fault = _mesh_fault(gradient, parameter)
    if fault:
        raise ValueError(f"terrace: the gradient of parameter '{name}' {fault}")
    if gradient.placements != parameter.placements:
        with torch.no_grad():
            gradient = gradient.redistribute(placements=parameter.placements)
    shard.grad_dtype = None  # any: which can be used is looked at later
    shard.grad = local_of(gradient)
    return shard


def local_of_state(value: torch.Tensor, parameter: torch.Tensor
                   ) -> tuple[torch.Tensor, str]:
    """What of a parameter's state is here, or why it can be none."""
    if not is_dtensor(parameter):
        return value, ('is a DTensor, and its parameter is none'
                       if is_dtensor(value) else '')
    fault = _mesh_fault(value, parameter)
    if fault and not is_dtensor(value):
        fault += ('; set_optimizer_state_dict() of '
                  'torch.distributed.checkpoint.state_dict shards it, with '
                  'full_state_dict=True')
    if not fault and value.placements != parameter.placements:
        fault = (f'is placed {value.placements}, its parameter '
                 f'{parameter.placements}')
    return value if fault else local_of(value), fault


def placed_as(parameter: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """A tensor that is sharded as the parameter is, over this shard's memory,
    wherever that is."""
    if not is_dtensor(parameter):
        return shard
    # DTensor.from_local() would move it to the device of the mesh.
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    strides = torch.empty(parameter.shape, device='meta').stride()
    return DTensor(shard, DTensorSpec(
        parameter.device_mesh, parameter.placements,
        tensor_meta=TensorMeta(parameter.shape, strides, shard.dtype)),
        requires_grad=False)


def wrapper_fault(tensor: torch.Tensor) -> str:
    """Why a tensor that wraps others cannot be stepped; '' of one that can, or
    that wraps none."""
    if type(tensor) in _PLAIN:
        return ''
    shard = local_of(tensor)
    if shard is not tensor:
        if any(placement.is_partial() for placement in tensor.placements):
            return (f'is a DTensor that is placed {tensor.placements}: no '
                    'process has its values')
        inner = wrapper_fault(shard)
        return inner and f'is a DTensor whose shard {inner}'
    if _has_memory(tensor) or is_offloaded(tensor):
        return ''
    return (f'is a {type(tensor).__name__}, which wraps other tensors and has '
            'no memory of its own; plain tensors and DTensors can be stepped')


def check_whole(named: Iterable[Named]) -> None:
    """NotImplementedError: one of these is not here as a whole."""
    for name, tensor in named:
        if sharding_of(tensor):
            raise NotImplementedError(
                f"terrace: parameter '{name}' is {sharding_of(tensor)}: each "
                f'rank has a part; write and read it by {_CHECKPOINT}')


def mark_written(parameters: Sequence[torch.Tensor]) -> None:
    """For autograd: shards of these were written to."""
    for parameter in parameters:
        torch.autograd.graph.increment_version(parameter)


def _mesh_fault(tensor: torch.Tensor, parameter: torch.Tensor) -> str:
    if not is_dtensor(tensor):
        return 'is a plain tensor, and the parameter a DTensor'
    if tensor.device_mesh != parameter.device_mesh:
        return (f'is a DTensor of {tensor.device_mesh}, and its parameter of '
                f'{parameter.device_mesh}')
    return ''


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False
