"""The optimizer's state as its users read it: copies, made when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from terrace._optimizer import AdamW

MASTER, FIRST_MOMENT, SECOND_MOMENT = range(3)

# As torch.optim.AdamW names them; the master is of 16-bit parameters only.
KEYS = {'master_param': MASTER, 'exp_avg': FIRST_MOMENT,
        'exp_avg_sq': SECOND_MOMENT}


class StateView(Mapping):
    """`optimizer.state`: from each parameter that was stepped to a dict with

        step          float32 scalar, as in torch.optim.AdamW
        exp_avg       float32, the parameter's shape: first moment
        exp_avg_sq    float32, the parameter's shape: second moment
        master_param  float32, the parameter's shape; of 16-bit parameters

    Each look at a value copies it out of its tier: 8 or 12 bytes an element.
    Writing into a copy changes nothing; load_state_dict does.
    """

    def __init__(self, optimizer: AdamW):
        self._optimizer = optimizer

    def _positions(self) -> dict[torch.Tensor, int]:
        steps = self._optimizer._steps()
        return {parameter: position for position, parameter
                in enumerate(self._optimizer._parameters())
                if position < len(steps) and steps[position] > 0}

    def __len__(self) -> int:
        return len(self._positions())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._positions())

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._positions()

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        position = self._positions().get(parameter)
        if position is None:
            return {}  # as torch's defaultdict
        return self._optimizer._read_state(position)

    def __repr__(self) -> str:
        return f'<state of {len(self)} parameters, copied when read>'


def checked(state: dict[str, Any], parameter: torch.Tensor,
            name: str) -> dict[str, Any]:
    """One parameter's state out of a state_dict, ready to be written: float32,
    contiguous, in CPU memory. ValueError names the parameter."""
    if 'max_exp_avg_sq' in state:
        raise ValueError(f"terrace: the state of '{name}' is amsgrad's")
    missing = {'step', 'exp_avg', 'exp_avg_sq'} - state.keys()
    if missing:
        raise ValueError(f"terrace: the state of '{name}' has no "
                         f'{", ".join(sorted(missing))}')
    step = float(state['step'])
    if not (step >= 0 and step == int(step)):
        raise ValueError(f"terrace: the step of '{name}' is {step}")
    result: dict[str, Any] = {'step': int(step)}
    for key in KEYS:
        if key not in state or (key == 'master_param' and
                                parameter.dtype == torch.float32):
            continue
        value = state[key]
        if value.shape != parameter.shape:
            raise ValueError(
                f"terrace: {key} of '{name}' is {tuple(value.shape)}, not "
                f'{tuple(parameter.shape)}')
        result[key] = value.detach().to(
            device='cpu', dtype=torch.float32).contiguous()
    return result
