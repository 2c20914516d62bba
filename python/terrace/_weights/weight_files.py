"""The tensors of a checkpoint of weights: of one file, or of a folder as
libraries of models write it."""

from __future__ import annotations

import os
from collections.abc import Callable

from terrace._weights import safetensors_files, torch_archive
from terrace._weights.regular_file import start_of
from terrace._weights.stored import Stored

# In a folder, the first of these that is there; else it is of safetensors.
_FIRST = ('model.safetensors.index.json', 'pytorch_model.bin.index.json',
          'model.safetensors', 'pytorch_model.bin')


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
    names = (name for name in _FIRST
             if os.path.exists(os.path.join(path, name)))
    first = next(names, '')
    if not first.startswith('pytorch_model'):
        return safetensors_files.tensors_of(path)
    file = os.path.join(path, first)
    return _of_index(file) if first.endswith('.json') else _of_file(file)


def _of_file(path: str) -> dict[str, Stored]:
    start = start_of(path, torch_archive.START_BYTES)
    read: Callable[[str], dict[str, Stored]] = (
        torch_archive.tensors_of if torch_archive.is_start(start)
        else safetensors_files.tensors_of)
    return read(path)


def _of_index(index: str) -> dict[str, Stored]:
    """Of files of torch.save."""
    files = safetensors_files.files_in(index)
    folder = os.path.dirname(index)
    by_file = {name: _of_file(os.path.join(folder, name))
               for name in sorted(set(files.values()))}
    absent = [name for name, file in files.items() if name not in by_file[file]]
    if absent:
        raise ValueError(f'terrace: {index} names tensors that its files have '
                         'not: ' + ', '.join(map(repr, absent)))
    return {name: by_file[file][name] for name, file in files.items()}
