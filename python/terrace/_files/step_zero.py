"""State of step 0, of which a checkpoint of terrace.save has nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from terrace._base.groups import Groups, named_in
from terrace._state.store import StateStore


def check_step_zero(store: StateStore, groups: Groups) -> None:
    """ValueError names the first parameter whose state would be lost: more
    than moments of zeros, which are no state."""
    for name, parameter in (pair for named in named_in(groups)
                            for pair in named):
        if store.has_state(parameter) and not store.steps_of(parameter):
            state, = store.copies([parameter])
            if not _is_nothing(state):
                raise ValueError(
                    f"terrace: the state of '{name}' has step 0 and is not "
                    'zeros, which terrace.save() does not keep; save after '
                    'the next step, or torch.save(optimizer.state_dict())')


def _is_nothing(state: Mapping[str, torch.Tensor]) -> bool:
    return not any(value.any() for value in state.values())
