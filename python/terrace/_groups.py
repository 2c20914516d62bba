"""torch's parameter groups as the compiled optimizer takes them: each
parameter at its position among those of all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def parameter_at(groups: Sequence[Mapping[str, Any]],
                 position: int) -> torch.Tensor:
    for group in groups:
        if position < len(group['params']):
            return group['params'][position]
        position -= len(group['params'])
    raise IndexError(f'no parameter is {position} behind the last one')


def names_in(group: Mapping[str, Any], index: int) -> list[str]:
    """Of its parameters, for messages; `index`: the group's."""
    given = group.get('param_names')
    if given:
        return list(given)
    return [f'group {index} parameter {i}' for i in range(len(group['params']))]


def described(groups: Sequence[Mapping[str, Any]],
              first: int = 0) -> tuple[list, list[str], list[int]]:
    """The parameters of those from the `first` group on, their names, and the
    index of each one's group."""
    parameters, names, indices = [], [], []
    for index, group in enumerate(groups[first:], first):
        parameters += group['params']
        names += names_in(group, index)
        indices += [index] * len(group['params'])
    return parameters, names, indices
