"""The model's steps begin here. The tensors that the last step used, in their
order, say what this step needs next.

A step ends when an optimizer has stepped a parameter of the model, so that it
holds all passes whose gradients are summed. Where gradients are off, as in
evaluation and generation, each call of the model is a step, and so is what
follows the last such call. A program that trains without an optimizer of
torch's has no steps: then the tensor that was used longest ago leaves first,
and nothing is fetched ahead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from terrace._offload.dispatched import check_not_traced


class Steps:
    """Calls `begin` where a step begins, and `first_ended` once, when the first
    step that used parameters has ended. Where gradients are off, that step ends
    with the call of the model, which may be the only one.

    Attributes:
        count: the steps that have begun.
    """

    def __init__(self, model: torch.nn.Module,
                 parameters: Iterable[torch.Tensor],
                 begin: Callable[[], None],
                 first_ended: Callable[[], None]) -> None:
        self.count = 0
        self._begin = begin
        self._first_ended: Callable[[], None] | None = first_ended
        self._was_called = False
        self._ids = frozenset(map(id, parameters))
        self._was_off = False  # Gradients were, in the model's last call.
        self._handles = [
            model.register_forward_pre_hook(_OfModel(self, 'on_forward')),
            model.register_forward_hook(_OfModel(self, 'on_forward_end')),
            register_optimizer_step_post_hook(_AfterStep(self))]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()

    def on_forward(self) -> None:
        check_not_traced()
        is_off = not torch.is_grad_enabled()
        if is_off or self._was_off:
            self._next(is_first=not self._was_called)
        self._was_off = is_off
        self._was_called = True

    def on_forward_end(self) -> None:
        if not torch.is_grad_enabled():
            self._end_first()

    def on_step(self, optimizer: torch.optim.Optimizer) -> None:
        if any(id(parameter) in self._ids for group in optimizer.param_groups
               for parameter in group['params']):
            self._next()

    def _next(self, is_first: bool = False) -> None:
        self.count += 1
        if not is_first:
            self._end_first()
        self._begin()

    def _end_first(self) -> None:
        tell, self._first_ended = self._first_ended, None
        if tell is not None:
            tell()


class _OfModel:
    """A hook of the model that calls that method. In a copy of the model the
    hook does nothing."""

    def __init__(self, steps: Steps | None = None, name: str = '') -> None:
        self._steps = weakref.ref(steps) if steps else _nothing
        self._name = name

    def __call__(self, *_: Any) -> None:
        steps = self._steps()
        if steps is not None:
            getattr(steps, self._name)()

    def __deepcopy__(self, memo: Any) -> _OfModel:
        return _OfModel()

    def __reduce__(self) -> Any:
        return _OfModel, ()


class _AfterStep:
    """A hook of all optimizers."""

    def __init__(self, steps: Steps) -> None:
        self._steps = weakref.ref(steps)

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        steps = self._steps()
        if steps is not None:
            steps.on_step(optimizer)


def _nothing() -> None:
    return None
