"""What of a model a configuration offloads: its parameters, by offload_param,
and its activations, by cpu_checkpointing."""

from __future__ import annotations

from typing import Any

import torch

from terrace._base.paths import check_paths
from terrace._offload.offload import Offload
from terrace._offload.offload import offload as offload_model

_SECTION = 'zero_optimization.offload_param'
_STAYED = {
    'kind': 'meaning', 'path': _SECTION,
    'text': 'offload=True: the configuration offloads no parameters to "cpu" '
            'or "nvme" at stage 3; they stay where the model has them'}
_IN_MEMORY = {
    'kind': 'meaning', 'path': f'{_SECTION}.device',
    'text': 'activations alone go below: the model is in CPU memory, its '
            'parameters are there already, and stay'}


def offload_below(model: torch.nn.Module, settings: dict[str, Any],
                  memory_budget: Any, is_wanted: bool) -> Offload | None:
    """As the settings say, of which it takes what says so; None: all stays,
    with a note where that was not what the caller wanted.

    Raises OSError: a path, which is named by its key; and what
    terrace.offload raises."""
    parameters = settings.pop('parameter_place')
    activations = settings.pop('activation_place')
    # Where both have paths they are the same ones.
    below = [place for place in (parameters, activations) if place['paths']]
    if not below:
        if parameters['device'] == 'cpu':
            return offload_model(model)
        if is_wanted:
            settings['notes'].append(_STAYED)
        return None
    if parameters['device'] == 'cpu':
        settings['notes'].append(_IN_MEMORY)
    check_paths(below[0]['paths'], below[0]['key'])
    return offload_model(
        model, nvme_path=below[0]['paths'],
        memory_budget=memory_budget if '%' in str(memory_budget) else None,
        parameters=bool(parameters['paths']),
        activations=bool(activations['paths']))
