"""terrace.save and terrace.load: checkpoints that stream."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch

from terrace._base.errors import RankError
from terrace._base.local_shard import check_whole
from terrace._base.paths import path_text
from terrace._files import fits, plain
from terrace._files.extra_states import ExtraStates
from terrace._files.model_tensors import ModelTensors, all_tensors
from terrace._files.objects import LoadedObjects
from terrace._files.step_zero import check_step_zero
from terrace._optimizer.adamw import AdamW, store_of, write_back
from terrace._ranks.interrupts import uninterrupted
from terrace._state.settings import Settings
from terrace._state.store import StateStore

# Objects have keywords for names, of which this is none.
_EXTRA = "the model's extra states"

# Of a group, what a checkpoint does not change.
_OWN = ('param_names', 'decoupled_weight_decay')


def save(directory: str | os.PathLike[str], model: torch.nn.Module,
         optimizer: AdamW | None = None, *,
         values: Mapping[str, Any] | None = None, **objects: Any) -> int:
    """Writes a checkpoint: the model's parameters and persistent buffers, the
    optimizer's state and groups, torch's random state, and that of the GPUs
    if torch has used them.

    The state goes from its tier to the file in blocks of 4 MiB; parameters,
    buffers of any dtype and state are safetensors, named as in the model. What
    safetensors has no dtype for is there as its parts, NAME.complex128 as
    float64 [..., 2]; quantized and sparse buffers are pickled, as values, the
    objects' states and modules' get_extra_state() are, in memory. A kill at
    any moment leaves the directory's old checkpoint or the new one.

    With a process_group every rank calls it, with a directory that all of them
    see: on one machine or on a file system that they share. Each streams the
    state of its share to a file of its own, rank 0 the parameters; the
    checkpoint is the new one when all have written and rank 0 has said so.
    The group's timeout must allow for what the slowest rank writes.

    Args:
        directory: made if it is not there; its parent must be.
        values: anything that torch.load(weights_only=True) reads: the position
            in the data, other random states.
        objects: things with state_dict(), under names of your choice:
            `scheduler=scheduler`, `scaler=scaler`.
            NumPy's numbers and texts, in values, states and groups, are saved
            as Python's of the same value.

    Returns:
        the bytes of the checkpoint.

    Raises:
        OSError: with errno and filename; a full disk is errno ENOSPC. The old
            checkpoint is as it was.
        ValueError: a parameter of the optimizer that is not the model's, or
            whose state has step 0 and is not zeros; a tensor on the meta
            device; more in the model's state_dict() than parameters, buffers
            and extra states; something in values, states or groups that
            load() could not read, by its place. Nothing was written.
        NotImplementedError: a DTensor, as fully_shard makes them:
            torch.distributed.checkpoint writes those. So does load().
        RankError: another rank failed or is gone. The old checkpoint is as it
            was, unless the rank was lost after the commit; then the new one
            is there.
    """
    check_whole(all_tensors(model).items())
    with _together(optimizer):
        return _save(path_text(directory), model, optimizer,
                     values or {}, objects)


def _save(directory: str, model: torch.nn.Module, optimizer: AdamW | None,
          values: Mapping[str, Any], objects: Mapping[str, Any]) -> int:
    tensors = ModelTensors(model)
    named = tensors.named
    content = {'layout': 2, 'others': tensors.others,
               'members': _members(optimizer, named),
               'kept': _kept(optimizer, named),
               'random': torch.get_rng_state(),
               'random_of_gpus': _random_of_gpus(),
               'random_of_ranks': _of_ranks(optimizer, torch.get_rng_state()),
               'random_of_gpus_of_ranks': _of_ranks(optimizer,
                                                    _random_of_gpus())}
    rest, error = io.BytesIO(), None
    try:
        tensors.check_elements()
        tensors.check_states()
        if optimizer is not None:
            write_back(optimizer)
            store_of(optimizer).follow_casts()
            check_step_zero(store_of(optimizer), optimizer.param_groups)
        rest = _written(content, model, optimizer, values, objects)
    except Exception as caught:  # the other ranks are to hear of it
        error = caught
    _agree(optimizer, 'saving', error)
    return _store(optimizer).save(
        directory, list(named.values()), list(named),
        torch.frombuffer(rest.getbuffer(), dtype=torch.uint8))


def _written(content: dict[str, Any], model: torch.nn.Module,
             optimizer: AdamW | None, values: Mapping[str, Any],
             objects: Mapping[str, Any]) -> io.BytesIO:
    """The content and what users gave, as a load reads it."""
    groups, given = 'optimizer.param_groups', 'values'
    extra = 'model.state_dict()'
    states = {name: f'{name}.state_dict()' for name in objects}
    named = plain.plain({
        groups: _groups(optimizer), given: dict(values),
        extra: ExtraStates(model).state_dict(),
        **{states[name]: thing.state_dict()
           for name, thing in objects.items()}})
    buffers = {f"buffer '{name}'": tensor
               for name, tensor in content['others'].items()}
    return plain.written(
        {**content, 'groups': named[groups], 'values': named[given],
         'extra_states': named[extra],
         'objects': {name: named[states[name]] for name in objects}},
        {**named, **buffers})


def load(directory: str | os.PathLike[str], model: torch.nn.Module,
         optimizer: AdamW | None = None, **objects: Any) -> dict[str, Any]:
    """Reads what save() wrote, from which the run goes on bit for bit, also
    with another budget, other paths, another engine or number of ranks. With a
    process_group every rank calls it and reads its share.

    Args:
        model, optimizer: of the same names, shapes and dtypes; without an
            optimizer only the parameters are read.
        objects: as for save(); each one's load_state_dict() is called. What
            they were before is in memory meanwhile, to be given back. So it
            is with what the model's modules take by set_extra_state().

    Returns:
        the `values` of save().

    Raises:
        FileNotFoundError: no checkpoint is there; nothing was changed.
        DataLossError: a file is missing, truncated or altered; names it, the
            tensor and the offset.
        ValueError: it is of another model or of an optimizer with other
            groups, lacks one of the objects, or has what its reader does not
            read, of an earlier version; nothing was changed here.
        OSError, MemoryError: of the checkpoint or the optimizer's paths.
        RankError: another rank could not load, or is gone. This one may have:
            load again on all ranks.
        What load_state_dict() of an object or set_extra_state() raises: all
            are as they were, and so is everything else. One that cannot be is
            named in a note of the exception.
    """
    check_whole(all_tensors(model).items())
    with _together(optimizer):
        return _load(path_text(directory), model, optimizer, objects)


def _load(directory: str, model: torch.nn.Module, optimizer: AdamW | None,
          objects: Mapping[str, Any]) -> dict[str, Any]:
    store = _store(optimizer)
    try:
        content, loaded = _begin_load(directory, store, model, optimizer,
                                      objects)
        try:
            tensors = ModelTensors(model, content['others'])
            store.load(list(tensors.named.values()), list(tensors.named))
        # Of another rank, which failed or is gone though the checkpoint fitted
        # it. Here parameters, state and objects are loaded by now, and groups
        # are not: all ranks are to load again.
        except RankError:
            raise
        except BaseException as error:
            loaded.give_back(error)
            raise
    finally:
        store.end_load()
    if optimizer is not None:
        for group, saved in zip(optimizer.param_groups, content['groups']):
            group.update({key: value for key, value in saved.items()
                          if key not in _OWN})
    tensors.take_copies()
    with torch.no_grad():
        for name, tensor in tensors.others.items():
            tensor.copy_(content['others'][name])
    _set_random(content, optimizer)
    return content['values']


def _begin_load(directory: str, store: StateStore, model: torch.nn.Module,
                optimizer: AdamW | None, objects: Mapping[str, Any]
                ) -> tuple[dict[str, Any], LoadedObjects]:
    """What a checkpoint holds beside parameters and state, when it fits on all
    ranks; and the objects, which have taken theirs."""
    loaded, error = None, None
    try:
        store.follow_casts()
        content = _read(directory, store)
        named = _check_fits(directory, content, model, optimizer, objects)
        if _reserve(store, content, named, optimizer):
            # In new memory, perhaps, which has not opened the checkpoint.
            content = _read(directory, store)
            named = _check_fits(directory, content, model, optimizer, objects)
        store.check_fits(list(named.values()), list(named))
        loaded = LoadedObjects(
            {**objects, _EXTRA: ExtraStates(model)},
            {**content['objects'], _EXTRA: content.get('extra_states', {})})
    except Exception as caught:  # the other ranks are to hear of it
        error = caught
    try:
        _agree(optimizer, 'loading', error)
    except BaseException as failure:
        if loaded is not None:
            loaded.give_back(failure)
        raise
    return content, loaded


def _check_fits(directory: str, content: dict[str, Any],
                model: torch.nn.Module, optimizer: AdamW | None,
                objects: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """All but what is streamed, which is returned."""
    tensors = ModelTensors(model, content['others'])
    fits.check_tensors(directory, content['others'], tensors.others)
    # Earlier versions did not keep them.
    if 'extra_states' in content:
        ExtraStates(model).check_fit(directory, content['extra_states'])
    fits.check_objects(directory, content['objects'], objects)
    if optimizer is not None:
        fits.check_groups(directory, content['groups'], content.get('members'),
                          _members(optimizer, tensors.named))
    return tensors.named


def _read(directory: str, store: StateStore) -> dict[str, Any]:
    """What it holds beside parameters and state."""
    # Large values are in memory twice, not more.
    pickled = io.BytesIO(store.begin_load(directory).numpy().tobytes())
    try:
        return plain.read(pickled)
    except pickle.UnpicklingError as error:
        found = re.search(r'GLOBAL ([\w.]+)', str(error))
        what = f'a {found[1]}' if found is not None else 'something'
        raise ValueError(
            f'terrace: {directory} holds {what}, which an earlier version '
            'saved and torch.load(weights_only=True) does not read. Where the '
            'checkpoint is trusted, load it within torch.serialization.'
            'safe_globals([...]) of that and of what is named next, and save '
            'it anew') from error


def _together(optimizer: AdamW | None) -> contextlib.AbstractContextManager:
    """Around what all ranks do: none leaves the others in the midst."""
    if optimizer is None or store_of(optimizer).ranks.alone:
        return contextlib.nullcontext()
    return uninterrupted()


def _agree(optimizer: AdamW | None, phase: str,
           error: BaseException | None) -> None:
    """All ranks go on, or none."""
    if optimizer is not None:
        store_of(optimizer).ranks.agree(phase, error)
    elif error is not None:
        raise error


def _set_random(content: dict[str, Any], optimizer: AdamW | None) -> None:
    """This rank's of as many, otherwise the first one's."""
    ranks = None if optimizer is None else store_of(optimizer).ranks

    def own(name: str) -> Any:
        every = content.get(f'{name}_of_ranks', [])
        if ranks is not None and ranks.size == len(every) > 1:
            return every[ranks.rank]
        return content.get(name, [])

    torch.set_rng_state(own('random'))
    gpus = own('random_of_gpus')
    if gpus and len(gpus) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(gpus)


def _random_of_gpus() -> list[torch.Tensor]:
    return (torch.cuda.get_rng_state_all() if torch.cuda.is_initialized()
            else [])


def _of_ranks(optimizer: AdamW | None, own: Any) -> list[Any]:
    """Each rank's; without ranks none."""
    if optimizer is None or store_of(optimizer).ranks.alone:
        return []
    return store_of(optimizer).ranks.gather_objects('saving', own)


def _store(optimizer: AdamW | None) -> StateStore:
    return (StateStore(Settings()) if optimizer is None
            else store_of(optimizer))


def _groups(optimizer: AdamW | None) -> list[dict[str, Any]]:
    if optimizer is None:
        return []
    return [{key: value for key, value in group.items() if key != 'params'}
            for group in optimizer.param_groups]


def _kept(optimizer: AdamW | None, named: dict) -> list[str]:
    """The names of those that have memory or disk for their state."""
    return [] if optimizer is None else [
        name for name, tensor in named.items()
        if store_of(optimizer).knows(tensor)]


def _reserve(store: StateStore, content: dict[str, Any],
             named: dict[str, torch.Tensor], optimizer: AdamW | None) -> bool:
    """Whether parameters had state when they were saved that have none here,
    as of a frozen one: now there is room for it."""
    if optimizer is None:
        return False
    # An older checkpoint does not say it, and had room for all.
    kept = set(content.get('kept', named))
    new = [[(name, named[name]) for name in names
            if name in kept and not store.knows(named[name])]
           for names in _members(optimizer, named)]
    if any(new):
        store.add(new)
    return any(new)


def _members(optimizer: AdamW | None, named: dict) -> list[list[str]]:
    """The names in the model of each group's parameters."""
    names = {id(tensor): name for name, tensor in named.items()}
    return [[names.get(id(parameter), '') for parameter in group['params']]
            for group in ([] if optimizer is None else optimizer.param_groups)]
