"""Optimizers of torch.optim that a configuration names, with what it asks for
besides. Their state is in memory."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

# DeepSpeed's own of the same name, those that need a closure or a gradient of
# another kind, and those that are stepped by Terrace.
_OTHERS = ('Optimizer', 'Adam', 'AdamW', 'LBFGS', 'Muon', 'SparseAdam')


def kinds() -> list[str]:
    """Names of torch.optim, as a configuration has them."""
    return [name for name, kind in vars(torch.optim).items()
            if inspect.isclass(kind) and name not in _OTHERS
            and issubclass(kind, torch.optim.Optimizer)]


class InMemoryOptimizer(torch.optim.Optimizer):
    """One of torch.optim, over fp32 masters of 16-bit parameters. A step clips
    the global norm of the gradients and is skipped, as the configuration says,
    and unscales them for a torch.amp.GradScaler.

    Raises:
        ValueError: what torch.optim says of the params; with all names that
            it does not know.
    """

    # Asked by torch.amp.GradScaler, which then sets grad_scale and found_inf.
    _step_supports_amp_scaling = True

    def __init__(self, parameters: Iterable[torch.Tensor],
                 settings: Mapping[str, Any]) -> None:
        parameters = list(parameters)
        self._most_norm = settings['gradient_clipping']
        self._skips = settings['skip_nonfinite']
        self._was_skipped = False
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float()
            for p in parameters]
        self._inner = _made(self._masters, **settings['callers_optimizer'])
        numbers = {key: value
                   for key, value in self._inner.param_groups[0].items()
                   if key != 'params'}
        super().__init__([{'params': parameters, **numbers}],
                         self._inner.defaults)

    def skipped(self) -> bool:
        """Whether the last step was."""
        return self._was_skipped

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, 'found_inf', None)
        factor = self._factor_of_gradients()
        self._was_skipped = factor is None or (
            found_inf is not None and bool(found_inf))
        if factor is not None and not self._was_skipped:
            self._update(factor)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and the masters of 16-bit parameters."""
        self._pass_numbers_on()
        state = self._inner.state_dict()
        masters = {index: master for index, (p, master)
                   in enumerate(self._pairs()) if p is not master}
        return {**state, 'masters': masters} if masters else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        state = dict(state_dict)
        masters = state.pop('masters', {})
        self._inner.load_state_dict(state)
        for key, value in self._inner.param_groups[0].items():
            if key != 'params':
                self.param_groups[0][key] = value
        with torch.no_grad():
            for index, (p, master) in enumerate(self._pairs()):
                if p is not master:
                    master.copy_(masters.get(index, p))

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.param_groups[0]['params'], self._masters))

    def _factor_of_gradients(self) -> float | None:
        """What they are multiplied by; None: the step is to be skipped."""
        scale = getattr(self, 'grad_scale', None)
        factor = 1.0 if scale is None else 1.0 / float(scale)
        if not (self._most_norm or self._skips):
            return factor
        squares = sum(float(p.grad.float().square().sum())
                      for p, _ in self._pairs() if p.grad is not None)
        norm = math.sqrt(squares) * factor if squares >= 0 else math.nan
        if self._skips and not math.isfinite(norm):
            return None
        if self._most_norm:
            factor /= max(1.0, (norm + 1e-6) / self._most_norm)
        return factor

    def _update(self, factor: float) -> None:
        self._pass_numbers_on()
        for p, master in self._pairs():
            if p.grad is None:
                master.grad = None
            elif p is not master:
                master.grad = p.grad.float().mul_(factor)
            elif factor != 1:
                p.grad.mul_(factor)
        self._inner.step()
        for p, master in self._pairs():
            if p is not master:
                p.copy_(master)
                master.grad = None

    def _pass_numbers_on(self) -> None:
        """Of the group, as a scheduler or a program has set them."""
        for key, value in self.param_groups[0].items():
            if key != 'params':
                self._inner.param_groups[0][key] = value


def _made(parameters: list[torch.Tensor], type: str,
          params: Mapping[str, Any]) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, type)
    unknown = [f'optimizer.params.{name}' for name in params
               if name not in inspect.signature(kind).parameters]
    if unknown:
        raise ValueError(f'terrace: {", ".join(unknown)}: torch.optim.{type} '
                         'has no such parameter')
    params = {name: tuple(value) if isinstance(value, list) else value
              for name, value in params.items()}
    try:
        return kind(parameters, **params)
    except (TypeError, ValueError) as error:
        raise ValueError(f'terrace: optimizer.params: torch.optim.{type}: '
                         f'{error}') from None
