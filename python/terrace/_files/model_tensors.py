"""A model's tensors, by how a checkpoint has them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch

from terrace._base import in_parts
from terrace._optimizer.checks import DTYPES, device_types

# Those of safetensors, which are streamed as they are.
_STREAMED = frozenset(DTYPES) | {
    torch.float64, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
    torch.bool, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2,
    torch.float8_e5m2fnuz}


def all_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, each by one of its names."""
    return _tensors_of(model, model.state_dict(keep_vars=True))


def _tensors_of(model: torch.nn.Module,
                states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    # What wraps a model may have other names for them there.
    persistent = {id(value) for value in states.values()}
    return {**dict(model.named_parameters()),
            **{name: buffer for name, buffer in model.named_buffers()
               if name in states or id(buffer) in persistent}}


def _lost_of(model: torch.nn.Module, states: Mapping[str, Any]) -> str | None:
    """The first name of what is neither parameter, buffer nor extra state, as
    modules have that pack their weights."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)),
               **dict(model.named_buffers(remove_duplicate=False))}
    storages = _storages_of(tensors.values())
    return next((name for name, value in states.items()
                 if name not in tensors
                 and name.rpartition('.')[2] != '_extra_state'
                 and _storage_of(value) not in storages), None)


# Hooks of a state_dict() may make views of a model's tensors.
def _storages_of(values: Iterable[Any]) -> set[int]:
    return {_storage_of(value) for value in values} - {0}


def _storage_of(value: Any) -> int:
    """What tells it from others; 0: it has none."""
    has_one = isinstance(value, torch.Tensor) and torch._C._has_storage(value)
    return _identity_of(value.untyped_storage()) if has_one else 0


_identity_of = torch._C.StorageBase._cdata.__get__


class ModelTensors:
    """Parameters and persistent buffers for a checkpoint, or of one.

    Attributes:
        named: what is streamed, by its name in the file: the tensor itself,
            its parts, or a copy of one that is lazily conjugated or negated.
        others: what is pickled, by its name in the model.
    """

    def __init__(self, model: torch.nn.Module,
                 pickled: Container[str] = ()) -> None:
        """`pickled`: names of what the checkpoint has there; earlier versions
        streamed less."""
        self.named: dict[str, torch.Tensor] = {}
        self.others: dict[str, torch.Tensor] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        states = model.state_dict(keep_vars=True)
        self._lost = _lost_of(model, states)
        for name, tensor in _tensors_of(model, states).items():
            if name in pickled or not _is_streamed(tensor):
                self.others[name] = tensor
            else:
                self._add(name, tensor)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        whole = tensor
        if tensor.is_conj() or tensor.is_neg():
            whole = tensor.detach().resolve_conj().resolve_neg()
            self._copies.append((tensor, whole))
        if tensor.dtype in _STREAMED:
            self.named[name] = whole
        else:
            self.named[in_parts.name_of(name, tensor.dtype)] = (
                in_parts.parts_of(whole.detach()))

    def check_elements(self) -> None:
        """ValueError: one has none, of which nothing could be saved."""
        for name, tensor in self.others.items():
            if tensor.is_meta:
                raise ValueError(f"terrace: '{name}' is on the meta device and "
                                 'has no elements that could be saved')

    def check_states(self) -> None:
        """ValueError: the model's state_dict() has more than parameters,
        buffers and extra states, which a checkpoint would lose."""
        if self._lost is not None:
            raise ValueError(
                f"terrace: '{self._lost}' of the model's state_dict() is "
                'neither a parameter nor a buffer, and would be lost: save '
                'model.state_dict() by torch.save, or give its module '
                'get_extra_state() and set_extra_state()')

    @torch.no_grad()
    def take_copies(self) -> None:
        """After `named` were loaded: into those that they are copies of."""
        for tensor, whole in self._copies:
            tensor.copy_(whole)


def _is_streamed(tensor: torch.Tensor) -> bool:
    return (tensor.layout == torch.strided and not tensor.is_nested
            and tensor.device.type in device_types()
            and (tensor.dtype in _STREAMED or tensor.dtype in in_parts.DTYPES))
