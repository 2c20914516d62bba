"""Optimizers that ask for an offloaded model's memory."""

from __future__ import annotations

from typing import Any

from terrace._offload.offload import Offload


def check_alone(offload: Any, **places: Any) -> None:
    """None of them can be had yet; what it is asked together with is told
    first."""
    if offload is None:
        return
    if not isinstance(offload, Offload):
        raise TypeError('terrace: offload is what terrace.offload() returned, '
                        f'not {type(offload).__name__}')
    for name, value in places.items():
        if value is not None:
            raise ValueError(f'terrace: offload and {name} together: the state '
                             "has the offloaded model's memory and paths")
    raise NotImplementedError(
        'terrace: an optimizer in the memory of an offloaded model is not '
        'built yet: without offload= the parameters are below, and the state '
        'has a memory_budget and an nvme_path of its own')
