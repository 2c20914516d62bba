"""An operation takes these parameters at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from terrace._base.groups import Named

# In eval() one operation takes the parameters of all parts of such a module.
_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


def together(model: torch.nn.Module,
             named: Sequence[Named]) -> list[list[int]]:
    """For each module the indices of the parameters that one operation of torch
    may take: the module's own, and for a few modules those of its parts."""
    index_of = {id(parameter): index
                for index, (_, parameter) in enumerate(named)}
    found = []
    for module in model.modules():
        of_parts = isinstance(module, _FUSED)
        indices = [index_of[id(parameter)]
                   for parameter in module.parameters(recurse=of_parts)
                   if id(parameter) in index_of]
        if indices:
            found.append(indices)
    return found
