"""The tensors of a checkpoint of weights: of one file, or of a folder as
libraries of models write it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from terrace._weights import own_checkpoint, safetensors_file, torch_archive
from terrace._weights.json_text import is_file_name, parsed
from terrace._weights.regular_file import start_of, whole_of
from terrace._weights.stored import Stored

# In a folder, the first of these that is there.
_INDICES = ('model.safetensors.index.json', 'pytorch_model.bin.index.json')
_FILES = ('model.safetensors', 'pytorch_model.bin')
_MOST_OF_INDEX = 100 << 20  # bytes


def tensors_of(checkpoint: str | os.PathLike[str]) -> dict[str, Stored]:
    """By name. Nothing but headers is read.

    Raises:
        OSError: a file that is not there or cannot be read.
        ValueError: one that is none of these, is cut, or has not what the
            index says; an index that leads out of its folder.
    """
    path = os.fspath(checkpoint)
    if not os.path.isdir(path):
        return _of_file(path)
    for name in _INDICES:
        index = os.path.join(path, name)
        if os.path.exists(index):
            return _of_index(index)
    for name in _FILES:
        file = os.path.join(path, name)
        if os.path.exists(file):
            return _of_file(file)
    own = os.path.join(path, own_checkpoint.NAME)
    if os.path.exists(own):
        return _of_file(os.path.join(path, own_checkpoint.file_in(own)))
    raise FileNotFoundError(
        errno.ENOENT, 'terrace: the folder has none of '
        + ', '.join((*_INDICES, *_FILES, own_checkpoint.NAME)), path)


def _of_file(path: str) -> dict[str, Stored]:
    start = start_of(path, torch_archive.START_BYTES)
    read: Callable[[str], dict[str, Stored]] = (
        torch_archive.tensors_of if torch_archive.is_start(start)
        else safetensors_file.tensors_of)
    return read(path)


def _of_index(index: str) -> dict[str, Stored]:
    try:
        files = parsed(whole_of(index, _MOST_OF_INDEX))['weight_map']
        if not isinstance(files, dict):
            raise ValueError('its weight_map is no object')
        for name, file in files.items():
            _check_beside(name, file)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'terrace: {index} is no index of weights: '
                         f'{type(error).__name__}: {error}') from None
    folder = os.path.dirname(index)
    by_file = {name: _of_file(os.path.join(folder, name))
               for name in sorted(set(files.values()))}
    absent = [name for name, file in files.items() if name not in by_file[file]]
    if absent:
        raise ValueError(f'terrace: {index} names tensors that its files have '
                         'not: ' + ', '.join(map(repr, absent)))
    return {name: by_file[file][name] for name, file in files.items()}


def _check_beside(name: str, file: object) -> None:
    if not is_file_name(file):
        raise ValueError(f"tensor '{name}' is in {str(file)[:64]!r}, which is "
                         'no name of a file beside it')
