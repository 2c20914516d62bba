"""Where tensors lie in safetensors files, as the library reads their headers,
and which files an index names."""

from __future__ import annotations

import torch

from terrace._base.errors import Outcome, check, is_data_loss
from terrace._base.library import weights
from terrace._base.paths import path_text
from terrace._weights.stored import Stored


def tensors_of(path: str) -> dict[str, Stored]:
    """Of a file; of a folder with an index, with model.safetensors, or as
    terrace.save makes it, whose checksums terrace.load compares.

    Raises OSError; ValueError: it is none, or is cut; two tensors share bytes,
    or some belong to none; an index that has more than its files."""
    outcome, *columns = weights().find(path_text(path))
    _check(outcome)
    return {name: Stored(file, name, empty.dtype, torch.Size(shape), offset)
            for name, file, empty, shape, offset
            in zip(*columns, strict=True)}


def files_in(index: str) -> dict[str, str]:
    """The name of a file beside it, by tensor; they may be of any format.

    Raises OSError; ValueError: it is no index, or leads out of its folder."""
    outcome, tensors, files = weights().read_index(path_text(index))
    _check(outcome)
    return dict(zip(tensors, files, strict=True))


def _check(outcome: Outcome) -> None:
    """What is cut or altered is not what was asked for: nothing is lost that
    the process had."""
    if is_data_loss(outcome):
        raise ValueError(f'terrace: {outcome[1]}')
    check(outcome)
