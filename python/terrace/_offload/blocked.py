"""What operations have waited for, by module."""

from __future__ import annotations

import re
from collections.abc import Mapping

_GRADIENT = re.compile(r'\.grad( \d+)?$')  # the end of a gradient's name


def longest_by_module(tensors: Mapping[str, float],
                      all_seconds: float,
                      update_seconds: float) -> dict[str, float]:
    """Seconds of the modules that were waited for longest, in order.

    Args:
        tensors: seconds by the names of those that are there, and
            "activations.saved" of all activations.
        all_seconds: of these and of gradients that have ended.
        update_seconds: beside these, for updates after step().
    """
    modules: dict[str, float] = {}
    gradients = all_seconds
    for name, seconds in tensors.items():
        if _GRADIENT.search(name):
            continue
        gradients -= seconds
        module = name.rpartition('.')[0]
        modules[module] = modules.get(module, 0.0) + seconds
    if gradients > 1e-7:  # less is what sums in another order differ by
        modules['gradients'] = gradients
    if update_seconds > 0:
        modules['updates'] = update_seconds
    ordered = sorted(modules.items(), key=lambda item: -item[1])
    return dict(ordered[:10])
