"""Files that plain torch reads and writes: runs come from it and go to it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from terrace._base.arrays import keys_of, step_tensor
from terrace._base.groups import named_in, parameters_in
from terrace._base.local_shard import check_whole
from terrace._base.paths import file_path
from terrace._files import fits, plain, torch_format
from terrace._optimizer.adamw import AdamW, store_of, write_back
from terrace._optimizer.loaded import load_streaming
from terrace._state.store import StateStore
from terrace._weights.torch_archive import is_mappable, loaded

# What people call them in the dict that they save.
_MODEL_KEYS = ('model', 'model_state_dict', 'state_dict')
_OPTIMIZER_KEYS = ('optimizer', 'optimizer_state_dict')


def export_torch(path: str | os.PathLike[str],
                 model: torch.nn.Module | None = None,
                 optimizer: AdamW | None = None, *,
                 values: Mapping[str, Any] | None = None,
                 **objects: Any) -> int:
    """Writes a file for torch.load(path, weights_only=True): a dict of

        model       model.state_dict()
        optimizer   in the form of torch.optim.AdamW's state_dict(), which its
                    load_state_dict takes; 16-bit parameters have their float32
                    `master_param` beside the moments
        values      as given
        NAME        objects[NAME].state_dict()

    NumPy's numbers and texts are Python's there, of the same value. The state
    streams from its tier, 4 MiB in memory at a time. The file is written under
    a name of its own, terrace-export-*.new, flushed, opened as a reader does
    and renamed: a kill leaves the old one or the new one, which has its mode.
    A link stays, and its target is replaced. To go on with terrace, save() is
    the better choice.

    Returns:
        the bytes of the file.

    Raises:
        OSError: with errno and filename; a full disk is errno ENOSPC. What was
            there is as it was, unless the message says that the new file is
            there and only its name may not outlast a crash of the machine.
        DataLossError: of the state that was to be read, as step() raises it.
        NotImplementedError: a tensor that is sparse, quantized, nested, on the
            meta device or of a dtype that torch.save of version 2.0 has not
            (float8, uint16); a storage; a DTensor; an optimizer whose state is
            shared over ranks.
        RuntimeError: the optimizer is closed, belongs to a parent process, or
            has a step that is unfinished.
        TypeError: the optimizer is none of terrace's.
        ValueError: something that torch.load(weights_only=True) does not read,
            by its place; a path that is a pipe or a device. Nothing was
            written.
    """
    path = file_path(path)
    _check_ours(optimizer)
    _check_whole(model, optimizer)
    if optimizer is not None and not store_of(optimizer).ranks.alone:
        raise NotImplementedError(
            'terrace: this rank has a share of the state; save() writes that '
            'of all ranks')
    if optimizer is not None:
        optimizer.stats()  # raises if it is closed: it would have no state
        write_back(optimizer)
        store_of(optimizer).follow_casts()
    content = _plain_content(model, optimizer, values, objects)
    if optimizer is not None:
        content['optimizer'] = {**_streamed_state(optimizer),
                                **content['optimizer']}
    with (contextlib.nullcontext() if optimizer is None
          else store_of(optimizer).reading()):
        return torch_format.write(path, content)


def _check_ours(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, AdamW):
        raise TypeError("terrace: the optimizer is one of terrace's, not a "
                        f'{type(optimizer).__name__}; name another as one of '
                        'the objects')


def _check_whole(model: torch.nn.Module | None,
                 optimizer: AdamW | None) -> None:
    if model is not None:
        check_whole(model.state_dict(keep_vars=True).items())
    if optimizer is not None:
        for named in named_in(optimizer.param_groups):
            check_whole(named)


def _plain_content(model: torch.nn.Module | None, optimizer: AdamW | None,
                   values: Mapping[str, Any] | None,
                   objects: Mapping[str, Any]) -> dict[str, Any]:
    """All but the optimizer's state, as import_torch reads it."""
    content: dict[str, Any] = {}
    if model is not None:
        content['model'] = model.state_dict()
    if optimizer is not None:
        content['optimizer'] = {'param_groups': _numbered_groups(optimizer)}
    if values is not None:
        content['values'] = dict(values)
    content.update({name: thing.state_dict()
                    for name, thing in objects.items()})
    called = {key: key if key == 'values' else f'{key}.state_dict()'
              for key in content}
    named = plain.plain({called[key]: value for key, value in content.items()})
    plain.check_without_elements(named)
    return {key: named[called[key]] for key in content}


def _numbered_groups(optimizer: AdamW) -> list[dict[str, Any]]:
    groups, first = [], 0
    for group in optimizer.param_groups:
        end = first + len(group['params'])
        groups.append({**group, 'params': list(range(first, end))})
        first = end
    return groups


def _streamed_state(optimizer: AdamW) -> dict[str, Any]:
    """Of optimizer.state_dict(), without the bytes."""
    state, store = {}, store_of(optimizer)
    for position, parameter in enumerate(parameters_in(optimizer.param_groups)):
        if not store.has_state(parameter):
            continue
        state[position] = {'step': step_tensor(store.steps_of(parameter))}
        for key in keys_of(parameter):
            state[position][key] = torch_format.Streamed(
                parameter.shape,
                functools.partial(_read, store, parameter, key))
    return {'state': state}


def _read(store: StateStore, parameter: torch.Tensor, key: str, offset: int,
          out: torch.Tensor) -> None:
    store.read(parameter, offset, {key: out})


def import_torch(path: str | os.PathLike[str],
                 model: torch.nn.Module | None = None,
                 optimizer: AdamW | None = None,
                 **objects: Any) -> dict[str, Any]:
    """Reads what torch.save or export_torch wrote: a dict that holds a
    model's state_dict ('model', 'model_state_dict' or 'state_dict'), one of a
    torch.optim.AdamW or a terrace.AdamW ('optimizer' or
    'optimizer_state_dict') and those of `objects` by their names; or one such
    state_dict alone.

    The file is mapped, not read, by torch.load(weights_only=True, mmap=True);
    its pages are given back as they are taken over, so that 4 MiB of each
    array of the state, or one module's tensors, are in memory at a time.

    Returns:
        the file's dict without what was taken over, its tensors mapped.

    Raises:
        FileNotFoundError: it is not there.
        NotImplementedError: a parameter is a DTensor.
        ValueError: it has not what was asked for, or does not fit; it is cut,
            altered, no file of torch.save, or holds more than weights_only
            allows. The optimizer is as it was.
        RuntimeError: as model.load_state_dict; the optimizer is loaded.
        MemoryError: the file cannot be mapped.
        OSError, DataLossError, MemoryError: of the optimizer's paths, as
            load_state_dict().
    """
    _check_ours(optimizer)
    _check_whole(model, optimizer)
    path = file_path(path)
    content = loaded(path, map_location='cpu', mmap=is_mappable(path))
    if not isinstance(content, dict):
        raise ValueError(f'terrace: {path} holds a {type(content).__name__}, '
                         'not a dict')
    rest = dict(content)
    taken = {}
    if model is not None:
        taken['model'] = _take(rest, _MODEL_KEYS, path, 'model',
                               alone=_is_tensors)
        fits.check_taken(path, taken['model'], _own_tensors(model))
    if optimizer is not None:
        taken['optimizer'] = _take(rest, _OPTIMIZER_KEYS, path, 'optimizer',
                                   alone=_is_optimizer)
    for name in objects:
        taken[name] = _take(rest, (name,), path, name, alone=None)
    pages = _Pages(path)
    if optimizer is not None:
        load_streaming(optimizer, taken['optimizer'], pages.give_back)
    if model is not None:
        _load_model(model, taken['model'], pages)
    for name, thing in objects.items():
        thing.load_state_dict(taken[name])
    return rest


def _own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By all their names."""
    return {**dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False))}


def _load_model(model: torch.nn.Module, tensors: dict[str, Any],
                pages: _Pages) -> None:
    """model.load_state_dict, with the pages of one module's own tensors in
    memory at a time."""
    def loaded(own: dict[str, Any], *_: Any) -> None:
        pages.give_back(own)

    handles = []
    for name, module in model.named_modules():
        prefix = f'{name}.' if name else ''
        names = [prefix + own for own, _ in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False))]
        handles.append(module.register_load_state_dict_post_hook(
            functools.partial(loaded, {name: tensors[name] for name in names
                                       if name in tensors})))
    try:
        model.load_state_dict(tensors)
    finally:
        for handle in handles:
            handle.remove()


def _is_tensors(content: dict[str, Any]) -> bool:
    return bool(content) and all(isinstance(value, torch.Tensor)
                                 for value in content.values())


def _is_optimizer(content: dict[str, Any]) -> bool:
    return {'state', 'param_groups'} <= content.keys()


def _take(rest: dict[str, Any], keys: Iterable[str], path: Any, what: str,
          alone: Callable[[dict[str, Any]], bool] | None) -> Any:
    """Out of `rest`, by one of the keys; or all of it."""
    for key in keys:
        if isinstance(rest.get(key), dict):
            return rest.pop(key)
    if alone is not None and alone(rest):
        everything = dict(rest)
        rest.clear()
        return everything
    raise ValueError(
        f'terrace: {path} has no state_dict of the {what} under '
        f'{" or ".join(map(repr, keys))}; it has '
        + (', '.join(map(repr, list(rest)[:10])) or 'nothing'))


class _Pages:
    """Of a file that is mapped privately and was not written to: given back,
    they are read from it again at the next touch."""

    def __init__(self, path: str | os.PathLike[str]):
        real = os.path.realpath(path)
        self._ranges = []
        with open('/proc/self/maps', encoding='utf-8') as maps:
            for line in maps:
                fields = line.rstrip('\n').split(maxsplit=5)
                if len(fields) == 6 and fields[5] == real:
                    first, end = fields[0].split('-')
                    self._ranges.append((int(first, 16), int(end, 16)))

    def give_back(self, tensors: dict[str, Any]) -> None:
        for tensor in tensors.values():
            if (not isinstance(tensor, torch.Tensor) or tensor.is_nested
                    or tensor.layout != torch.strided):
                continue  # it has no storage, or several
            storage = tensor.untyped_storage()
            address, end = storage.data_ptr(), (storage.data_ptr() +
                                                storage.nbytes())
            # Not those that torch.load made otherwise.
            if any(low <= address < end <= high
                   for low, high in self._ranges):
                first = address // mmap.PAGESIZE * mmap.PAGESIZE
                _LIBC.madvise(ctypes.c_void_p(first),
                              ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


_LIBC = ctypes.CDLL(None)
