"""The seconds that operations have waited, by module."""

from __future__ import annotations

import re
from collections.abc import Mapping

_GRADIENT = re.compile(r'\.grad( \d+)?$')  # A gradient's name ends so.


def longest_by_module(tensors: Mapping[str, float],
                      all_seconds: float,
                      update_seconds: float) -> dict[str, float]:
    """The modules that operations waited for longest, in order, with the
    seconds.

    Args:
        tensors: the seconds by the name of each tensor that exists;
            "activations.saved" stands for all activations.
        all_seconds: the seconds for these tensors and for gradients that have
            ended.
        update_seconds: the seconds beside these, for updates after step().
    """
    modules: dict[str, float] = {}
    gradients = all_seconds
    for name, seconds in tensors.items():
        if _GRADIENT.search(name):
            continue
        gradients -= seconds
        module = name.rpartition('.')[0]
        modules[module] = modules.get(module, 0.0) + seconds
    if gradients > 1e-7:  # Sums in another order differ by less.
        modules['gradients'] = gradients
    if update_seconds > 0:
        modules['updates'] = update_seconds
    ordered = sorted(modules.items(), key=lambda item: -item[1])
    return dict(ordered[:10])
