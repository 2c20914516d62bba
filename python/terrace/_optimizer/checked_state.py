"""Whether what users give as a parameter's state can be that. All raise a
ValueError that names the parameter."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from terrace._base.arrays import KEYS
from terrace._base.local_shard import local_of_state

# As the library's optimizer: up to there a double has every number.
MOST_STEPS = 1 << 53


def checked(state: Mapping[str, Any], parameter: torch.Tensor,
            name_of: Callable[[], str]) -> dict[str, Any]:
    """A whole state, as StateStore takes it."""
    if is_lazy(parameter):
        raise ValueError(f"terrace: parameter '{name_of()}' has no shape yet: "
                         'give it state after the first forward')
    if 'max_exp_avg_sq' in state:
        raise ValueError(f"terrace: the state of '{name_of()}' is amsgrad's")
    further = state.keys() - {'step', *KEYS}
    if further:
        raise ValueError(
            f"terrace: the state of '{name_of()}' has no place for "
            f'{", ".join(sorted(map(str, further)))}; keep it beside the '
            'optimizer')
    missing = {'step', 'exp_avg', 'exp_avg_sq'} - state.keys()
    if missing:
        raise ValueError(f"terrace: the state of '{name_of()}' has no "
                         f'{", ".join(sorted(missing))}')
    result: dict[str, Any] = {'step': _count(state['step'], name_of)}
    for key in KEYS:
        if key not in state or (key == 'master_param' and
                                parameter.dtype == torch.float32):
            continue
        value = state[key]
        if value.is_meta or value.layout != torch.strided:
            raise ValueError(f"terrace: {key} of '{name_of()}' is on "
                             f'{value.device}, {value.layout}: it has no '
                             'elements to be taken')
        if value.shape != parameter.shape:
            raise ValueError(
                f"terrace: {key} of '{name_of()}' is {tuple(value.shape)}, not "
                f'{tuple(parameter.shape)}')
        local, fault = local_of_state(value, parameter)
        if fault:
            raise ValueError(f"terrace: {key} of '{name_of()}' {fault}")
        result[key] = local.detach()
    return result


def _count(given: Any, name_of: Callable[[], str]) -> int:
    """Of steps: a whole number, or a tensor that holds one."""
    value = given
    if (isinstance(value, torch.Tensor) and value.numel() == 1
            and not value.is_meta):
        value = value.item()
    if (isinstance(value, bool) or not isinstance(value, numbers.Real)
            or not 0 <= value <= MOST_STEPS or value != int(value)):
        raise ValueError(
            f"terrace: the step of '{name_of()}' is {str(value)[:64]}; it is "
            f'a whole number from 0 to {MOST_STEPS}')
    return int(value)


def checked_changes(state: Mapping[str, Any], unchanged: Collection[str],
                    parameter: torch.Tensor,
                    name_of: Callable[[], str]) -> dict[str, Any]:
    """Of a state that was changed, what is not as it was."""
    return {key: value for key, value
            in checked(state, parameter, name_of).items()
            if key not in unchanged}
