"""Gradients that DistributedDataParallel averages."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def are_averaged(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether those of some of these are. They are given back at the end of
    backward, on one rank too, whatever was done with them meanwhile. It leaves
    no mark on a parameter, so that this looks at all objects of the process,
    for a tenth of a second."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    ids = set(map(id, parameters))
    return any(not ids.isdisjoint(map(id, model.parameters()))
               for model in gc.get_objects()
               if issubclass(type(model), DistributedDataParallel))
