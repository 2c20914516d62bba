"""step_in_backward and overlap of terrace.AdamW."""

from __future__ import annotations

from typing import Any

from terrace._ranks.ranks import Ranks, number_of_ranks


def is_late(overlap: bool | None, passes: int, ranks: Ranks,
            has_joined: bool) -> bool:
    """Whether updates go on after step(), of an optimizer that may have joined
    an offloaded model."""
    if overlap is not None:
        return overlap
    return (has_joined and not passes and ranks.group is None
            and number_of_ranks() == 1)


def check(passes: int, overlap: bool | None, max_grad_norm: float,
          ranks: Ranks) -> None:
    """ValueError, NotImplementedError: it cannot be as it was asked for."""
    _check(passes, overlap, max_grad_norm)
    if passes and ranks.group is not None:
        raise NotImplementedError(
            'terrace: step_in_backward with a process_group: ranks that share '
            'the state begin a step together, and backward cannot; without '
            'process_group each rank of DistributedDataParallel may have it')


def _check(passes: int, overlap: bool | None, max_grad_norm: float) -> None:
    if overlap is not None and not isinstance(overlap, bool):
        raise ValueError('terrace: overlap is True, False or None, not '
                         f'{overlap!r}')
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 0:
        raise ValueError('terrace: step_in_backward is a number of backward '
                         f'passes, or 0, not {passes!r}')
    if not passes:
        return
    if overlap:
        raise ValueError('terrace: step_in_backward and overlap=True together: '
                         'one leaves nothing to the other')
    if max_grad_norm:
        raise ValueError(
            'terrace: step_in_backward and max_grad_norm together: the norm is '
            'known when the last gradient is, and the first are stepped '
            'before; leave out one of the two')
