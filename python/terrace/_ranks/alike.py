"""Whether all ranks have the same parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from terrace._ranks.ranks import Ranks


def check_alike(ranks: Ranks, phase: str, groups: Sequence[Mapping[str, Any]],
                error: Exception | None, **words: Any) -> None:
    """That all ranks have the same groups of parameters, and say the same;
    ValueError names the first that differs."""
    described = [[(_shape_of(p), str(p.dtype)) for p in group['params']]
                 for group in groups]
    try:
        ranks.agree(phase, error, parameters=described, **words)
    except ValueError as differ:
        if differ is error:
            raise
        every = ranks.gather_objects(phase, described)
        if all(one == every[0] for one in every):
            raise  # for another word
        raise ValueError(f'{differ}: {_difference(every)}') from None


def _difference(every: list[list[list[tuple]]]) -> str:
    for rank, groups in enumerate(every):
        if len(groups) != len(every[0]):
            return (f'{len(every[0])} groups on rank 0, {len(groups)} on rank '
                    f'{rank}')
        for g, (first, group) in enumerate(zip(every[0], groups)):
            for i, (a, b) in enumerate(zip_longest(first, group)):
                if a != b:
                    return (f'parameter {i} of group {g} is {_text(a)} on rank '
                            f'0 and {_text(b)} on rank {rank}')
    return 'two ranks alike'


def _shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Of one that has none yet as of a scalar."""
    return () if is_lazy(parameter) else tuple(parameter.shape)


def _text(shape_and_dtype: tuple | None) -> str:
    if shape_and_dtype is None:
        return 'missing'
    shape, dtype = shape_and_dtype
    return f'{list(shape)} of {dtype.removeprefix("torch.")}'
