"""torch's parameter groups, as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

Groups = Sequence[Mapping[str, Any]]
# A parameter and what messages call it.
Named = tuple[str, torch.Tensor]


def parameters_in(groups: Groups) -> list[torch.Tensor]:
    return [parameter for group in groups for parameter in group['params']]


def names_in(group: Mapping[str, Any], index: int) -> list[str]:
    """Of its parameters, for messages; `index`: the group's."""
    given = group.get('param_names')
    if given:
        return list(given)
    return [f'group {index} parameter {i}' for i in range(len(group['params']))]


def named_in(groups: Groups, first: int = 0) -> list[list[Named]]:
    """The parameters of each group from the `first` on."""
    return [list(zip(names_in(group, index), group['params']))
            for index, group in enumerate(groups[first:], first)]


def names_of(groups: Groups) -> list[str]:
    return [name for index, group in enumerate(groups)
            for name in names_in(group, index)]


def numbers_of(groups: Groups) -> list[float]:
    """Seven a group, as the compiled optimizer takes them."""
    numbers: list[float] = []
    for group in groups:
        beta1, beta2 = group['betas']
        numbers += (number_of(group['lr'], 'lr'), float(beta1), float(beta2),
                    float(group['eps']), float(group['weight_decay']),
                    float(bool(group['decoupled_weight_decay'])),
                    float(bool(group['maximize'])))
    return numbers


def number_of(value: Any, what: str) -> float:
    """TypeError: it is none, or a text of one."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f'terrace: {what} is {value!r}, which is no number')
    return float(value)


def trained(groups: list[list[Named]]) -> list[list[Named]]:
    """Without those that are frozen, or have no shape yet, which get state with
    their first gradient, if they ever have one."""
    return [[pair for pair in named
             if pair[1].requires_grad and not is_lazy(pair[1])]
            for named in groups]
