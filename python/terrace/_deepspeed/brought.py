"""The optimizer that a caller brings beside a configuration without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from terrace._optimizer.checks import IGNORED, REFUSED

_STEPPED = {torch.optim.AdamW: True, torch.optim.Adam: False}
_NUMBERS = {'learning_rate': 'lr', 'epsilon': 'eps',
            'weight_decay': 'weight_decay'}
_ADAM = ('learning_rate', 'beta1', 'beta2', 'epsilon', 'weight_decay')
_NOT_TAKEN = ('params', 'param_names', 'decoupled_weight_decay', *REFUSED,
              *IGNORED)


class Brought:
    """AdamW or Adam of the caller's: of an optimizer, or of numbers.

    Attributes:
        groups: for terrace.AdamW, each with its own numbers; parameters as
            (name, tensor).
        numbers: of the first group, as the library takes them; None: the
            caller brings nothing. Those that differ between the groups are
            each group's own; `amend` says so.

    Raises:
        ValueError: numbers beside an optimizer, which has its own.
    """

    def __init__(self, named: list[tuple[str, torch.Tensor]],
                 optimizer: torch.optim.Optimizer | None,
                 known: Mapping[str, float]) -> None:
        self.is_own = optimizer is not None
        unused = [f'{name}=' for name in _ADAM if name in known]
        if self.is_own and unused:
            raise ValueError('terrace: optimizer= has numbers of its own; '
                             f'give it, or {", ".join(unused)}')
        if optimizer is not None:
            self.groups = _groups_of(optimizer, named)
            self.numbers = _numbers_of(optimizer)
        else:
            self.groups = [{'params': named}]
            self.numbers = _numbers_in(known)

    @property
    def named(self) -> list[tuple[str, torch.Tensor]]:
        return [pair for group in self.groups for pair in group['params']]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Whether the optimizer is asked for once. Raises ValueError."""
        if settings['optimizer'] is None and (
                settings['callers_optimizer'] is None):
            raise ValueError(
                'terrace: optimizer: not in the configuration; pass '
                'learning_rate= for AdamW of what is passed, or optimizer=')
        if self.is_own and 'optimizer' in settings['given']:
            raise ValueError('terrace: optimizer: the configuration has one, '
                             'and optimizer= is another; give one of them')
        rates = {float(group['lr']) for group in self.groups if 'lr' in group}
        if settings['has_schedule'] and len(rates) > 1:
            raise ValueError(
                'terrace: scheduler: it sets one rate for all groups, and '
                f'those of optimizer= have {sorted(rates)}')

    def amend(self, notes: list[dict[str, str]]) -> None:
        """Says in the note on the optimizer where its groups differ: the
        library knows the first one's numbers only."""
        parts = []
        for key in ('lr', 'betas', 'eps', 'weight_decay'):
            found = [_number(group[key]) for group in self.groups
                     if key in group]
            if len(set(found)) > 1:
                parts.append(f'{key} {" to ".join(_ends(found))}')
        for note in notes:
            if parts and note['path'] == 'optimizer':
                note['text'] += (f' in the first of {len(self.groups)} groups, '
                                 'which keep their own: ' + ', '.join(parts))


def _number(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(float(each) for each in value)
    return float(value)


def _ends(found: list[Any]) -> list[str]:
    return [f'{end:g}' if isinstance(end, float) else str(end)
            for end in (min(found), max(found))]


def _groups_of(optimizer: torch.optim.Optimizer,
               named: list[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
    if type(optimizer) not in _STEPPED:
        raise NotImplementedError(
            f'terrace: optimizer= is {_type_name(optimizer)}; '
            'torch.optim.AdamW and torch.optim.Adam can be stepped')
    if optimizer.state:
        raise ValueError(
            'terrace: optimizer= has stepped already; make a new one, and '
            'give its state_dict() to the optimizer that is returned')
    if any('initial_lr' in group for group in optimizer.param_groups):
        raise ValueError(
            'terrace: optimizer= has a scheduler, which would not know of the '
            'optimizer that is returned; make it for that one')
    names = {id(parameter): name for name, parameter in named}
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        for key in REFUSED:
            if group.get(key):
                raise NotImplementedError(
                    f'terrace: {key} of optimizer= is not supported')
        groups.append({
            **{key: value for key, value in group.items()
               if key not in _NOT_TAKEN},
            'params': [(names.get(id(parameter),
                                  f'group {index} parameter {position}'),
                        parameter)
                       for position, parameter in enumerate(group['params'])]})
    return groups


def _numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    decoupled = {bool(group.get('decoupled_weight_decay',
                                _STEPPED[type(optimizer)]))
                 for group in optimizer.param_groups}
    if len(decoupled) > 1:
        raise NotImplementedError('terrace: decoupled_weight_decay of '
                                  'optimizer= differs between its groups')
    first = optimizer.param_groups[0]
    return {'lr': float(first['lr']),
            'betas': [float(beta) for beta in first['betas']],
            'eps': float(first['eps']),
            'weight_decay': float(first['weight_decay']),
            'decoupled': decoupled.pop(), 'bias_correction': True}


def _numbers_in(known: Mapping[str, float]) -> dict[str, Any] | None:
    """AdamW's defaults where one is not known; the rate has none."""
    if 'learning_rate' not in known:
        return None
    numbers = {'lr': 0.0, 'eps': 1e-8, 'weight_decay': 1e-2,
               'betas': [known.get('beta1', 0.9), known.get('beta2', 0.999)],
               'decoupled': True, 'bias_correction': True}
    for name, key in _NUMBERS.items():
        if name in known:
            numbers[key] = known[name]
    return numbers


def _type_name(value: object) -> str:
    return f'{type(value).__module__}.{type(value).__qualname__}'
