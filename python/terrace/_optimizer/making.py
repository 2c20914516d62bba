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
from terrace._state.settings import Settings
from terrace._state.share import Share
from terrace._state.shared import SharedByRanks
from terrace._state.stepping.in_backward import InBackward
from terrace._state.stepping.late import Late
from terrace._state.stepping.stepping import Stepping
from terrace._state.store import StateStore


def settings_of(memory_budget: Any, nvme_path: Any, tiers: Any, daemon: Any,
                offload: Any, engine: str, norm: float) -> Settings:
    check_alone(offload, memory_budget=memory_budget, nvme_path=nvme_path,
                tiers=tiers, daemon=daemon)
    settings = Settings.of_places(memory_budget, nvme_path, tiers, daemon,
                                  engine=engine, max_gradient_norm=norm,
                                  **machine.settings())
    check_paths(settings.paths, settings.path_name)
    if settings.device:
        raise NotImplementedError(
            f'terrace: tier "hbm:{settings.device}": the state is kept on '
            'dram, as "dram=2GiB", far, pmem and nvme, as '
            '"nvme:/mnt/nvme0=100GiB"; an offloaded model has memory of a '
            'device, which the optimizer joins')
    return settings


def store_for(settings: Settings, ranks: Ranks, offload: Any, groups: Groups,
              overlap: bool | None, passes: int, write_back: weakref.WeakMethod
              ) -> StateStore:
    """What steps the parameters, after so many backward passes in the last of
    them, or with 0 in step(). `write_back`: called before a step that backward
    begins; gives the groups. ValueError, NotImplementedError: it cannot be as
    it was asked for."""
    in_backward.check(passes, overlap, settings.max_gradient_norm, ranks)
    settings = joined(settings, offload, parameters_in(groups))
    stepping = Stepping()
    if in_backward.is_late(overlap, passes, ranks, settings.home is not None):
        stepping = Late(is_asked_for=overlap is not None)
    elif passes:
        stepping = InBackward(passes, write_back)
    return StateStore(settings,
                      Share() if ranks.alone else SharedByRanks(ranks),
                      stepping)
