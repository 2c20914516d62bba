"""An optimizer finds the offloaded model that it joins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from terrace._offload.managed import Managed
from terrace._offload.offload import Offload, managed_by
from terrace._ranks.ranks import number_of_ranks
from terrace._state.settings import Settings


def check_alone(offload: Any, **places: Any) -> None:
    """Raises ValueError where another argument says what offload= says."""
    if offload is None:
        return
    if not isinstance(offload, Offload):
        raise TypeError('terrace: offload is what terrace.offload() returned, '
                        f'not {type(offload).__name__}')
    for name, value in places.items():
        if value is not None:
            raise ValueError(f'terrace: offload and {name} together: the state '
                             "has the offloaded model's memory and paths")


def joined(settings: Settings, offload: Offload | None,
           parameters: Iterable[torch.Tensor]) -> Settings:
    """The settings, in the memory of the offloaded model. That is the model
    that offload= names; else, for an optimizer on one rank that names no places
    of its own, the only offloaded model that has some of the parameters.

    Raises ValueError where the optimizer asks for another engine than the
    model's, and RuntimeError where the model is closed."""
    if offload is None and number_of_ranks() > 1:
        return settings
    if offload is not None:
        model = managed_by(offload)
    elif settings.names_places or settings.names_home:
        return settings
    else:
        model = _only_one(parameters)
    if model is None:
        return settings
    if model.is_closed:
        raise RuntimeError('terrace: offload: this Offload is closed')
    of = model.settings
    if settings.engine not in ('auto', of.engine):
        raise ValueError(
            f'terrace: io_engine={settings.engine!r}: the optimizer joins an '
            f"offloaded model, whose paths have io_engine={of.engine!r} for "
            'parameters and state alike; leave it out')
    return dataclasses.replace(
        settings, budget=of.budget, memory_place=of.memory_place,
        paths=of.paths, path_budgets=of.path_budgets,
        mapped_tiers=of.mapped_tiers, unsafe_media=of.unsafe_media,
        daemon=of.daemon, job=of.job, engine=of.engine,
        machine_profile=of.machine_profile, home=model)


def _only_one(parameters: Iterable[torch.Tensor]) -> Managed | None:
    parameters = list(parameters)
    found = [model for model in Managed.all_open()
             if any(map(model.has, parameters))]
    return found[0] if len(found) == 1 else None
