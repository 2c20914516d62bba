"""The parameters that a configuration offloads: its offload_param."""

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


def offload_parameters(model: torch.nn.Module, settings: dict[str, Any],
                       memory_budget: Any, is_wanted: bool) -> Offload | None:
    """As the settings say, of which it takes what says so; None: they stay,
    with a note where that was not what the caller wanted.

    Raises OSError: a path, which is named by its key; and what
    terrace.offload raises."""
    device = settings.pop('parameter_device')
    paths = settings.pop('parameter_paths')
    if device == 'nvme':
        check_paths(paths, f'{_SECTION}.nvme_path')
        is_share = '%' in str(memory_budget)
        return offload_model(model, nvme_path=paths,
                             memory_budget=memory_budget if is_share else None)
    if device == 'cpu':
        return offload_model(model)
    if is_wanted:
        settings['notes'].append(_STAYED)
    return None
