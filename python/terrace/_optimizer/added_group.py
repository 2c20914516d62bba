"""A group that an optimizer gets after the others."""

from __future__ import annotations

from typing import Any

import torch

from terrace._base.groups import named_in, names_in, trained
from terrace._optimizer import checks
from terrace._ranks.alike import check_alike
from terrace._state.store import StateStore


def add_group(optimizer: torch.optim.Optimizer, store: StateStore | None,
              param_group: dict[str, Any]) -> None:
    """Without a store: in torch's constructor."""
    count = len(optimizer.param_groups)
    before = None if store is None else store.mark()
    error = None
    try:
        torch.optim.Optimizer.add_param_group(optimizer, param_group)
        added = optimizer.param_groups[-1]
        checks.check_group(added, names_in(added, count))
        if store is not None:
            store.add(trained(named_in(optimizer.param_groups, count)))
    except BaseException as caught:
        del optimizer.param_groups[count:]
        if store is None or not isinstance(caught, Exception):
            raise
        error = caught
    if store is None:
        return
    try:
        check_alike(store.ranks, 'adding a group',
                    optimizer.param_groups[count:], error)
    except BaseException:
        if error is None:  # it was added here only
            del optimizer.param_groups[count:]
            store.back_to(before)
        raise
