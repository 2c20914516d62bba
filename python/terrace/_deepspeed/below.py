"""What of a model a configuration offloads: its parameters, by offload_param,
and its activations, by cpu_checkpointing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from terrace._base.paths import check_paths
from terrace._offload.arguments import (settings_of, with_activations,
                                        with_device)
from terrace._offload.offload import Offload, opened

_SECTION = 'zero_optimization.offload_param'
_STAYED = {
    'kind': 'meaning', 'path': _SECTION,
    'text': 'offload=True: the configuration offloads no parameters to "cpu" '
            'or "nvme" at stage 3; they stay where the model has them'}
_IN_MEMORY = {
    'kind': 'meaning', 'path': f'{_SECTION}.device',
    'text': 'activations alone go below: the model is in CPU memory, its '
            'parameters are there already, and stay'}


def has_one_place(settings: Mapping[str, Any]) -> bool:
    """Whether parameters and state are offloaded to the same paths, or both to
    memory: then the optimizer joins the model. Where activations alone go below
    there is nothing to join."""
    place = settings['parameter_place']
    if place['device'] == 'none' or (
            place['device'] != settings['offload_device']):
        return False
    if place['device'] == 'cpu':
        return settings['activation_place']['device'] != 'nvme'
    return _same(place['paths']) == _same(settings['nvme_path'])


def offload_below(model: torch.nn.Module, settings: dict[str, Any],
                  memory_budget: Any, joins: bool, threads: int,
                  is_wanted: bool) -> Offload | None:
    """As the settings say, of which it takes what says so; None: all stays,
    with a note where that was not what the caller wanted.

    Args:
        memory_budget: bytes are the state's alone where that does not join.
        joins: whether the optimizer will.
        threads: that it has then; 0: as many as there are cores.

    Raises OSError: a path, which is named by its key; and what
    terrace.offload raises."""
    parameters = settings.pop('parameter_place')
    activations = settings.pop('activation_place')
    # Where both have paths they are the same ones.
    below = [place for place in (parameters, activations)
             if place['device'] == 'nvme']
    if not below:
        if parameters['device'] == 'cpu':
            return _opened(model, memory_budget if joins else None, None, None,
                           threads)
        if is_wanted:
            settings['notes'].append(_STAYED)
        return None
    if parameters['device'] == 'cpu':
        settings['notes'].append(_IN_MEMORY)
    check_paths(below[0]['paths'], below[0]['key'])
    budget = memory_budget if joins or '%' in str(memory_budget) else None
    return _opened(model, budget, below[0]['paths'] or None,
                   settings['daemon'] or None, threads,
                   parameters['device'] == 'nvme',
                   activations['device'] == 'nvme')


def _opened(model: torch.nn.Module, memory_budget: Any,
            paths: list[str] | None, daemon: str | None, threads: int,
            parameters: bool = True, activations: bool = False) -> Offload:
    """What terrace.offload returns; with so many threads."""
    settings = with_activations(
        with_device(settings_of(memory_budget, paths, None, daemon), model),
        activations)
    return opened(model, dataclasses.replace(settings, threads=threads),
                  parameters)


def _same(paths: Iterable[str]) -> list[str]:
    return sorted(map(os.path.realpath, paths))
