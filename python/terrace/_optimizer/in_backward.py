"""step_in_backward and overlap of terrace.AdamW."""

from __future__ import annotations

from typing import Any

import torch

from terrace._ranks.ranks import Ranks


def check(passes: int, overlap: bool, max_grad_norm: float,
          ranks: Ranks) -> None:
    """ValueError, NotImplementedError: it cannot be as it was asked for."""
    _check(passes, overlap, max_grad_norm)
    if overlap and (ranks.group is not None or _ranks() > 1):
        raise NotImplementedError(
            'terrace: overlap=True on one of several ranks, or with a '
            'process_group: parameters are broadcast or averaged by what does '
            'not wait for their updates')
    if passes and ranks.group is not None:
        raise NotImplementedError(
            'terrace: step_in_backward with a process_group: gradients are '
            'stepped before they could be averaged')


def _check(passes: int, overlap: bool, max_grad_norm: float) -> None:
    if not isinstance(overlap, bool):
        raise ValueError(f'terrace: overlap is True or False, not {overlap!r}')
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
            'known when the last gradient is, and the first are stepped before')
    if _ranks() > 1:
        raise NotImplementedError(
            f'terrace: step_in_backward on one of {_ranks()} ranks: gradients '
            'are stepped before they could be averaged')


def _ranks() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
