"""The optimizer's state as its users read it: copies, made when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from terrace._state.store import StateStore


class StateView(Mapping):
    """`optimizer.state`: from each parameter that was stepped to a dict with

        step          float32 scalar, as in torch.optim.AdamW
        exp_avg       float32, the parameter's shape: first moment
        exp_avg_sq    float32, the parameter's shape: second moment
        master_param  float32, the parameter's shape; of 16-bit parameters

    Each look at a value copies it out of its tier: 8 or 12 bytes an element.
    Writing into a copy changes nothing; load_state_dict does.
    """

    def __init__(self, store: StateStore):
        self._store = store

    def __len__(self) -> int:
        return self._store.count_stepped()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._store.stepped())

    def __contains__(self, parameter: object) -> bool:
        return self._store.steps_of(parameter) > 0

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        if not self._store.steps_of(parameter):
            return {}  # as torch's defaultdict
        return self._store.copies([parameter])[0]

    def __repr__(self) -> str:
        return f'<state of {len(self)} parameters, copied when read>'


class WholeState(StateView):
    """The same to who takes all of it: in few calls."""

    def items(self) -> Any:
        found = self._store.stepped()
        return zip(found, self._store.copies(found))
