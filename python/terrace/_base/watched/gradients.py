"""Gradients that go below as backward makes them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from terrace._base.groups import Named
from terrace._base.local_shard import is_dtensor, local_of, local_to_step
from terrace._base.watched.tensor import WatchedTensor


class _Model(Protocol):
    is_below: bool
    is_closed: bool

    def has(self, tensor: torch.Tensor) -> bool: ...
    def take_gradient(self, parameter: torch.Tensor) -> None: ...
    def take_shard_gradient(self, name: str, shard: torch.Tensor) -> None: ...


class GradientWatch:
    """Gradients of the parameters of a model, and of shards in CPU memory, go
    below for an optimizer that joined the model; for as long as this lives, at
    most until end()."""

    def __init__(self, model: _Model) -> None:
        self._model = model
        # By the parameter's id, itself and its hook.
        self._watched: dict[int, tuple[WatchedTensor, Any]] = {}

    def add(self, named: Iterable[Named]) -> None:
        """What gradients they have goes below now. Those that are not of the
        model, and those watched already, are left as they are; frozen ones are
        watched for when they are thawed."""
        if not self._model.is_below:
            return
        for name, parameter in named:
            known = self._watched.get(id(parameter))
            if (known is not None and known[0]() is parameter
                    or _stays_frozen(parameter)
                    or not self._is_taken(parameter)):
                continue
            self._take(name, parameter)
            handle = _hooked(parameter, _AfterGradient(self, name))
            self._watched[id(parameter)] = WatchedTensor(parameter), handle

    def came(self, name: str, parameter: torch.Tensor) -> None:
        if not self._model.is_closed:
            self._take(name, parameter)

    def _is_taken(self, parameter: torch.Tensor) -> bool:
        if is_dtensor(parameter):
            return local_of(parameter).device.type == 'cpu'
        return self._model.has(parameter)

    def _take(self, name: str, parameter: torch.Tensor) -> None:
        """Of a DTensor the part of the gradient that is placed as the shard is;
        fully_shard makes it with those of a whole module in one storage, which
        goes below as one."""
        gradient = parameter.grad
        if not is_dtensor(parameter):
            if not _is_in_bucket(gradient):
                self._model.take_gradient(parameter)
        elif (is_dtensor(gradient)
              and gradient.placements == parameter.placements):
            self._model.take_shard_gradient(name,
                                            local_to_step(parameter, name))

    @property
    def gradient_bytes(self) -> int:
        """Of those that are not frozen, as torch makes them."""
        watched = [of() for of, _ in self._watched.values()]
        return sum(local_of(parameter).nbytes for parameter in watched
                   if parameter is not None and parameter.requires_grad)

    def end(self) -> None:
        for parameter, handle in self._watched.values():
            handle.remove()
            parameter.end()
        self._watched.clear()


class _AfterGradient:
    """A hook of a parameter, with which it lives."""

    def __init__(self, watch: GradientWatch, name: str) -> None:
        self._watch = weakref.ref(watch)
        self._name = name

    def __call__(self, parameter: torch.Tensor) -> None:
        watch = self._watch()
        if watch is not None:
            watch.came(self._name, parameter)


def _is_in_bucket(gradient: torch.Tensor | None) -> bool:
    """Whether it may be a view of a bucket of DistributedDataParallel
    (gradient_as_bucket_view), whose memory is sent without an operation."""
    if (gradient is None or gradient.layout != torch.strided
            or not (torch.distributed.is_available()
                    and torch.distributed.is_initialized())):
        return False
    return _storage(gradient).nbytes() > gradient.nbytes


# Not as others read it: backward would wait for updates.
_storage = torch._C.TensorBase.untyped_storage


def _stays_frozen(parameter: torch.Tensor) -> bool:
    return not parameter.requires_grad and (parameter.is_inference()
                                            or not parameter.dtype
                                            .is_floating_point)


def _hooked(parameter: torch.Tensor, hook: _AfterGradient) -> Any:
    """torch takes hooks of none that is frozen, and keeps those that it has."""
    if parameter.requires_grad:
        return parameter.register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(hook)
    finally:
        parameter.requires_grad_(False)
