"""The weights of a model on the meta device come from files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import Parameter

from terrace._base import in_parts
from terrace._base.groups import Named
from terrace._base.paths import file_path
from terrace._offload.managed import Managed
from terrace._offload.progress import Progress
from terrace._weights.stored import Stored
from terrace._weights.weight_files import tensors_of


class Weights:
    """The tensors that a checkpoint has for a model. Nothing is read before
    bring()."""

    def __init__(self, model: torch.nn.Module,
                 checkpoint: str | os.PathLike[str],
                 init_buffers: Callable[[torch.nn.Module], Any] | None,
                 device: str) -> None:
        """Raises ValueError, with the names, where the checkpoint does not fit
        the model."""
        for name, parameter in model.named_parameters():
            if parameter.device.type != 'meta':
                raise ValueError(
                    f"terrace: parameter '{name}' is on {parameter.device} "
                    'already; checkpoint= fills a model on the meta device')
        self._model = model
        self._device = torch.device(device)
        self._path = file_path(checkpoint)
        stored = {name: each for name, each in tensors_of(self._path).items()
                  if not _is_extra(name)}
        if init_buffers is not None:
            init_buffers(model)
        # A model of transformers says which of its weights are tied; weights
        # that were made piece by piece on the meta device are not tied yet.
        if callable(getattr(model, 'tie_weights', None)):
            model.tie_weights()
        state = {key: value
                 for key, value in model.state_dict(keep_vars=True).items()
                 if isinstance(value, torch.Tensor) and not _is_extra(key)}
        made = {id(buffer) for buffer in model.buffers()
                if init_buffers is not None or buffer.device.type == 'meta'}
        stored = _whole(stored, state)
        _check_fit(self._path, state, stored, made)
        # The key is the model's tensor, which several names may share.
        self._stored = {id(value): stored[key]
                        for key, value in state.items() if key in stored}
        self._check_buffers()

    def _check_buffers(self) -> None:
        absent = {name: buffer for name, buffer in self._model.named_buffers()
                  if buffer.device.type == 'meta'
                  and id(buffer) not in self._stored}
        if absent:
            raise ValueError(
                f'terrace: the checkpoint has no {", ".join(absent)}, and '
                'these buffers of the model are on the meta device: make '
                'them by init_buffers=, which is called with the model'
                + _left_to_load(absent))

    def bring(self, managed: Managed, named: Sequence[Named]) -> list[Named]:
        """Makes the parameters, below and filled, in place of the `named` ones
        on the meta device. After an error the model is as it was.

        Raises OSError, DataLossError, MemoryError."""
        made: dict[int, Parameter] = {}
        sizes = [self._stored[id(old)].size_bytes for _, old in named]
        with Progress(f'reading {self._path}', sum(sizes)) as progress:
            for (name, old), size in zip(named, sizes):
                made[id(old)] = self._make(managed, name, old)
                progress.add(size)
        buffers = {id(old): self._read(old).to(self._device)
                   for old in self._model.buffers() if id(old) in self._stored}
        for module in self._model.modules():
            _replace(module.named_parameters(recurse=False,
                                             remove_duplicate=False),
                     made, module.register_parameter)
            for name, old in module.named_buffers(recurse=False,
                                                  remove_duplicate=False):
                if id(old) in buffers:
                    _set_buffer(module, name, old, buffers[id(old)])
                elif old.device != self._device:
                    setattr(module, name, old.to(self._device))
        return [(name, made[id(old)]) for name, old in named]

    def _make(self, managed: Managed, name: str, old: torch.Tensor
              ) -> Parameter:
        # Nothing is written here, so that the values take no memory before the
        # library takes them over.
        values = torch.empty_strided(old.size(), old.stride(), dtype=old.dtype,
                                     device=self._device)
        managed.take([(name, values)])
        if values.numel() > 0 and self._device.type == 'cpu':
            with managed.lease(values, write=True):
                self._stored[id(old)].read(values)
        elif values.numel() > 0:
            values.copy_(self._read(old))
        parameter = Parameter(values, requires_grad=old.requires_grad)
        parameter.__dict__.update(old.__dict__)
        return parameter

    def _read(self, old: torch.Tensor) -> torch.Tensor:
        """Into ordinary memory."""
        values = torch.empty(old.shape, dtype=old.dtype, device='cpu')
        self._stored[id(old)].read(values)
        return values


def _whole(stored: Mapping[str, Stored], state: Mapping[str, torch.Tensor]
           ) -> dict[str, Stored]:
    """Whole tensors stand in place of the parts that terrace.save writes."""
    found = dict(stored)
    for name, value in state.items():
        parts = stored.get(in_parts.name_of(name, value.dtype))
        if (parts is not None and name not in stored
                and parts.dtype == in_parts.DTYPES.get(value.dtype)
                and parts.shape == in_parts.shape_of(value.shape,
                                                     value.dtype)):
            found[name] = dataclasses.replace(
                found.pop(parts.name), dtype=value.dtype, shape=value.shape)
    return found


def _replace(own: Iterable[tuple[str, torch.Tensor]],
             made: Mapping[int, Parameter],
             put: Callable[[str, Parameter], None]) -> None:
    for name, old in list(own):
        put(name, made[id(old)])


def _set_buffer(module: torch.nn.Module, name: str, old: torch.Tensor,
                values: torch.Tensor) -> None:
    if old.device != values.device:
        setattr(module, name, values)  # It is as persistent as before.
    else:
        old.copy_(values)


def _check_fit(path: str, state: Mapping[str, torch.Tensor],
               stored: Mapping[str, Stored], optional: set[int]) -> None:
    # A tied tensor may lack under one of its names.
    has = optional | {id(value) for key, value in state.items()
                      if key in stored}
    missing = [key for key, value in state.items() if id(value) not in has]
    unexpected = [key for key in stored if key not in state]
    misshapen = [
        f'{key} of {tuple(stored[key].shape)} for {tuple(value.shape)}'
        for key, value in state.items()
        if key in stored and stored[key].shape != value.shape]
    unlike = [
        f'{key} of {stored[key].dtype} for {value.dtype}'
        for key, value in state.items()
        if key in stored and not in_parts.can_become(stored[key].dtype,
                                                     value.dtype)]
    faults = [f'{what} {", ".join(names)}' for what, names in (
        ('missing', missing), ('unexpected', unexpected),
        ('misshapen', misshapen), ('of a dtype that does not become another',
                                   unlike)) if names]
    if faults:
        raise ValueError(
            f'terrace: {path} does not fit the model: ' + '; '.join(faults)
            + _left_to_load({key: state[key] for key in missing}))


def _is_extra(name: str) -> bool:
    """Whether it names what a module has beside weights, which may be a
    tensor."""
    return name.rpartition('.')[2] == '_extra_state'


def _left_to_load(absent: Mapping[str, torch.Tensor]) -> str:
    """Names tensors that no file of weights has, and terrace.save wrote."""
    names = [name for name, tensor in absent.items()
             if tensor.layout != torch.strided or tensor.is_quantized]
    return '' if not names else (
        f'; {", ".join(names)} being sparse or quantized, what terrace.save '
        'wrote of that is read by terrace.load(), into what init_buffers= made')
