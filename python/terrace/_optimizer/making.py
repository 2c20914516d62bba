"""What an optimizer is made from."""

from __future__ import annotations

import weakref
from typing import Any

from terrace._base import machine
from terrace._base.groups import Groups, parameters_in
from terrace._base.paths import check_paths
from terrace._offload.joining import check_alone, joined
from terrace._optimizer import in_backward
from terrace._ranks.ranks import Ranks
from terrace._state.in_backward_store import InBackwardStore
from terrace._state.late_store import LateStore
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


def store_for(settings: Settings, ranks: Ranks, offload: Any, groups: Groups,
              overlap: bool | None, passes: int, write_back: weakref.WeakMethod
              ) -> StateStore:
    """What steps the parameters, after so many backward passes in the last of
    them, or with 0 in step(). `write_back`: called before a step that backward
    begins; gives the groups. ValueError, NotImplementedError: it cannot be as
    it was asked for."""
    in_backward.check(passes, overlap, settings.max_gradient_norm, ranks)
    settings = joined(settings, offload, parameters_in(groups), ranks)
    if in_backward.is_late(overlap, passes, ranks, settings.home is not None):
        return LateStore(settings, is_asked_for=overlap is not None)
    if passes:
        return InBackwardStore(settings, passes, write_back)
    return (StateStore(settings) if ranks.alone else
            SharedStore(settings, ranks))
