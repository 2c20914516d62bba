"""DeepSpeed's JSON as an optimizer, a scheduler and settings."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from terrace import _arguments, _errors, _library, _message, _ranks
from terrace._brought import Brought
from terrace._optimizer import AdamW

_DTYPES = {torch.float32: 'fp32', torch.bfloat16: 'bf16',
           torch.float16: 'fp16'}
_KNOWN = ('learning_rate', 'beta1', 'beta2', 'epsilon', 'weight_decay',
          'gradient_clipping', 'warmup_min_lr', 'warmup_max_lr',
          'warmup_num_steps', 'total_num_steps', 'micro_batch',
          'accumulation_steps', 'train_batch')
_NOT_SHARED = {
    'kind': 'meaning', 'path': 'zero_optimization.stage',
    'text': 'at stage 0 every rank of the process_group keeps all the state; '
            'at 1 they share it'}


class ConfiguredAdamW(AdamW):
    """AdamW or Adam with what a DeepSpeed configuration asks for besides."""

    def __init__(self, params: Any, settings: Mapping[str, Any],
                 plan: Mapping[str, Any], process_group: Any) -> None:
        adam = settings['optimizer']
        self._decoupled = adam['decoupled']
        self._further = {
            'threads': plan['threads'], 'chunk_bytes': plan['chunk_bytes'],
            'skip_nonfinite': settings['skip_nonfinite'],
            'bias_correction': adam['bias_correction']}
        super().__init__(
            params, adam['lr'], tuple(adam['betas']), adam['eps'],
            adam['weight_decay'],
            memory_budget=plan['memory_budget'],
            nvme_path=plan['paths'],
            max_grad_norm=settings['gradient_clipping'] or None,
            process_group=process_group)

    def _native_options(self, budget: int | None) -> dict[str, Any]:
        return {**super()._native_options(budget), **self._further}


class ConfiguredSchedule(torch.optim.lr_scheduler.LRScheduler):
    """The learning rate (and the betas, where they are cycled) that DeepSpeed's
    scheduler of the same configuration sets. As there, step() after a skipped
    step of the optimizer does nothing."""

    def __init__(self, optimizer: ConfiguredAdamW, native: Any,
                 cycles_momentum: bool) -> None:
        self._config = native
        self._cycles_momentum = cycles_momentum
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        rate, beta1, beta2 = self._config.adam_at(self.last_epoch + 1)
        if self._cycles_momentum:
            for group in self.optimizer.param_groups:
                group['betas'] = (beta1, beta2)
        return [rate for _ in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch >= 0 and self.optimizer._native.skipped():
            return
        super().step() if epoch is None else super().step(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items()
                if key != '_config'}


def from_deepspeed_config(
    model: torch.nn.Module,
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    memory_budget: int | str | None = None,
    process_group: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    notes: bool = False,
    **known: float | int,
) -> tuple[AdamW, torch.optim.lr_scheduler.LRScheduler | None, dict[str, Any]]:
    """What a DeepSpeed configuration asks for, as (optimizer, scheduler,
    settings); the model is not wrapped.

    Args:
        model: its parameters that require a gradient are optimized; with
            optimizer= those of the optimizer, and only they.
        config: a dict, the path of a JSON file, or its urlsafe base64 text.
        memory_budget: as for AdamW; DeepSpeed's JSON has no key for it. None:
            all the state without NVMe, a tenth of it with.
        process_group: as for AdamW. Its ranks share the state at stages 1 and
            2; every one of them calls this. At stage 0 each keeps all of it,
            as with None.
        optimizer: for a configuration without one: a torch.optim.AdamW or
            Adam that has not stepped. Its groups and their numbers are taken
            over; it is not used afterwards, nor is a scheduler made for it.
        notes: say every note on standard error; else how many there are, and
            those on what contradicts `known`.
        known: numbers for keys that are "auto" or absent: learning_rate,
            beta1, beta2, epsilon, weight_decay, gradient_clipping,
            warmup_min_lr, warmup_max_lr, warmup_num_steps, total_num_steps,
            micro_batch, accumulation_steps, train_batch. A number of the
            configuration goes before another one here, with a note that is
            always said. A configuration without an optimizer gets AdamW of the
            first five, which do not go together with optimizer=.

    Returns:
        the optimizer, which clips and skips steps as the configuration says;
        a scheduler to be stepped after each of the optimizer's steps, None
        where the configuration has none; a dict of the rest, for the loop:
        micro_batch, accumulation_steps, train_batch, loss_scale (None or its
        numbers, for torch.amp.GradScaler), `notes` on every key that has no
        say here, and more.

    Raises:
        ValueError: the configuration is wrong, or contradicts the model, or
            leaves a batch whose numbers do not multiply out; the message has
            the path of the key and its line.
        NotImplementedError: DeepSpeed has it and Terrace does not.
        OSError, MemoryError: as for AdamW; before anything is reserved.
        RankError: another rank of the process_group failed, or is gone.
    """
    unknown = known.keys() - set(_KNOWN)
    if unknown:
        raise TypeError('terrace: from_deepspeed_config knows no '
                        + ', '.join(sorted(unknown)))
    named = [(name, parameter) for name, parameter in model.named_parameters()
             if parameter.requires_grad]
    ranks = everybody = _ranks.ranks_of(process_group)
    error = None
    try:
        brought = Brought(named, optimizer, known)
        native = _open(config, model, brought, known, ranks)
        settings = json.loads(native.describe())
        brought.check(settings)
        brought.amend(settings['notes'])
        if settings['stage'] == 0 and not ranks.alone:
            settings['notes'].append(_NOT_SHARED)
            ranks = _ranks.ranks_of(None)
        plan = _plan(native, brought, ranks, memory_budget)
    except Exception as caught:  # the other ranks are to hear of it
        error = caught
    everybody.agree('reading the configuration', error)
    settings['notes'] += plan['notes']
    made = ConfiguredAdamW(brought.groups, settings, plan,
                           None if ranks.alone else process_group)
    scheduler = None
    if settings.pop('has_schedule'):
        scheduler = ConfiguredSchedule(made, native,
                                       settings['cycles_momentum'])
    _message.tell_notes(settings['notes'], _name_of(config), each=notes)
    return made, scheduler, settings


def _plan(native: Any, brought: Brought, ranks: _ranks.Ranks,
          memory_budget: Any) -> dict[str, Any]:
    """Of what this rank keeps."""
    named = brought.named
    parameters = [parameter for _, parameter in named]
    state_bytes = sum(map(_ranks.state_bytes, parameters)) // ranks.size
    budget = _arguments.Budget(memory_budget, has_paths=False)
    asked_bytes = budget.of(state_bytes) or 0
    # Group after group, as the optimizer shares them out.
    ranks.assign([{'params': [parameter for _, parameter in group['params']]}
                  for group in brought.groups])
    own = ranks.own(named)
    if not any(parameter.numel() for _, parameter in own):
        own = named  # it will keep nothing, but the paths are looked at
    outcome = native.plan([parameter for _, parameter in own],
                          [name for name, _ in own], asked_bytes,
                          budget.is_share)
    _errors.check(outcome)
    plan = json.loads(outcome[1])
    # A share, which none given is too, follows the state.
    plan['memory_budget'] = (
        memory_budget if memory_budget is None or budget.is_share
        else plan['budget_bytes'])
    if budget.was_raised(plan['budget_bytes']):
        plan['notes'].append({
            'kind': 'sized', 'path': 'memory_budget',
            'text': f'{memory_budget} of the state is {asked_bytes} bytes; the '
                    f'least that works is {plan["budget_bytes"]}'})
    return plan


def _open(config: Any, model: torch.nn.Module, brought: Brought,
          known: Mapping[str, Any], ranks: _ranks.Ranks) -> Any:
    dtypes = {parameter.dtype for _, parameter in brought.named}
    caller = {**known, 'text_has_lines': not isinstance(config, Mapping),
              'parameters_in_cpu_memory': all(
                  parameter.device.type == 'cpu'
                  for parameter in model.parameters())}
    if brought.numbers is not None:
        caller['adam'] = brought.numbers
    if len(dtypes) == 1 and (dtype := dtypes.pop()) in _DTYPES:
        caller['parameter_dtype'] = _DTYPES[dtype]
    if torch.distributed.is_available() and (
            torch.distributed.is_initialized()):
        caller['world_size'] = torch.distributed.get_world_size()
    caller['shares_state'] = not ranks.alone
    _library.load()
    native = torch.classes.terrace.ZeroConfig()
    _errors.check(native.open(_text_of(config), json.dumps(caller)))
    return native


def _name_of(config: Any) -> str:
    if not isinstance(config, Mapping) and os.path.exists(config):
        return os.path.basename(os.fspath(config))
    return 'the configuration'


def _text_of(config: Any) -> str:
    if isinstance(config, Mapping):
        try:
            return json.dumps(config, allow_nan=False)
        except ValueError as error:
            raise ValueError(f'terrace: the configuration: {error}') from None
    path = os.fspath(config)
    if os.path.exists(path):
        with open(path, encoding='utf-8') as file:
            return file.read()
    try:
        return base64.urlsafe_b64decode(path).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f'terrace: {path!r} is neither a file nor the base64 '
                         'text of a configuration') from None
