"""What an optimizer is made from."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from terrace._base import machine
from terrace._base.paths import check_paths
from terrace._offload.joining import check_alone, joined
from terrace._ranks.ranks import Ranks
from terrace._state.in_backward_store import InBackwardStore
from terrace._state.settings import Settings
from terrace._state.shared_store import SharedStore
from terrace._state.store import StateStore


def settings_of(memory_budget: Any, nvme_path: Any, tiers: Any, offload: Any,
                engine: str, norm: float) -> Settings:
    check_alone(offload, memory_budget=memory_budget, nvme_path=nvme_path,
                tiers=tiers)
    settings = Settings.of_places(memory_budget, nvme_path, tiers,
                                  engine=engine, max_gradient_norm=norm,
                                  **machine.settings())
    check_paths(settings.paths, settings.path_name)
    return settings


def store_for(settings: Settings, ranks: Ranks, offload: Any,
              parameters: Iterable[torch.Tensor], passes: int,
              write_back: weakref.WeakMethod) -> StateStore:
    """What steps the parameters, after so many backward passes in the last of
    them, or with 0 in step(). `write_back`: called before a step that backward
    begins; gives the groups."""
    if passes:
        return InBackwardStore(settings, passes, write_back)
    settings = joined(settings, offload, parameters, ranks.alone)
    return (StateStore(settings) if ranks.alone else
            SharedStore(settings, ranks))
