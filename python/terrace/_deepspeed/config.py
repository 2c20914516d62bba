"""DeepSpeed's JSON as an optimizer, a scheduler and settings."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from terrace._base import library
from terrace._base.errors import check
from terrace._deepspeed.below import has_one_place, offload_below
from terrace._deepspeed.brought import Brought
from terrace._deepspeed.cast import DTYPES, can_cast, cast
from terrace._deepspeed.in_memory import InMemoryOptimizer, kinds
from terrace._deepspeed.notes import tell_notes
from terrace._deepspeed.plan import IN_MEMORY, plan_for
from terrace._deepspeed.schedule import ConfiguredSchedule
from terrace._deepspeed.text import name_of, plain, text_of
from terrace._offload.offload import Offload
from terrace._optimizer.adamw import AdamW
from terrace._ranks.ranks import Ranks, ranks_of
from terrace._state.settings import Settings

_KNOWN = ('learning_rate', 'beta1', 'beta2', 'epsilon', 'weight_decay',
          'gradient_clipping', 'warmup_min_lr', 'warmup_max_lr',
          'warmup_num_steps', 'total_num_steps', 'micro_batch',
          'accumulation_steps', 'train_batch')
# Of a model in memory, by what the caller wants offloaded.
_PARAMETERS = {None: 'offloaded_to_nvme', True: 'offloaded',
               False: 'in_cpu_memory'}
_NOT_SHARED = {
    'kind': 'meaning', 'path': 'zero_optimization.stage',
    'text': 'at stage 0 every rank of the process_group keeps all the state; '
            'at 1 they share it'}


class ConfiguredAdamW(AdamW):
    """AdamW or Adam with what a DeepSpeed configuration asks for besides."""

    def __init__(self, params: Any, settings: Mapping[str, Any],
                 plan: Mapping[str, Any], process_group: Any,
                 offload: Offload | None) -> None:
        adam = settings['optimizer']
        self._decoupled = adam['decoupled']
        self._configured = {
            'threads': plan['threads'], 'chunk_bytes': plan['chunk_bytes'],
            'skip_nonfinite': settings['skip_nonfinite'],
            'bias_correction': adam['bias_correction'],
            # The text says where the state is, "cpu" too: by itself it joins
            # no model.
            'names_home': True}
        super().__init__(
            params, adam['lr'], tuple(adam['betas']), adam['eps'],
            adam['weight_decay'],
            memory_budget=plan['memory_budget'],
            nvme_path=plan['paths'],
            daemon=plan['daemon'],
            max_grad_norm=settings['gradient_clipping'] or None,
            process_group=process_group,
            offload=offload)

    def _further(self, settings: Settings) -> Settings:
        return dataclasses.replace(settings, **self._configured)


def from_deepspeed_config(
    model: torch.nn.Module,
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    memory_budget: int | str | None = None,
    process_group: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    notes: bool = False,
    offload: bool | None = None,
    **known: float | int,
) -> tuple[AdamW | InMemoryOptimizer,
           torch.optim.lr_scheduler.LRScheduler | None, dict[str, Any]]:
    """What a DeepSpeed configuration asks for, as (optimizer, scheduler,
    settings); the model's code stays as it is.

    Args:
        model: its parameters that require a gradient are optimized; with
            optimizer= only those of that. All are cast to the type that bf16
            or fp16 enables, as DeepSpeed casts them.
        config: a dict, the path of a JSON file, or its urlsafe base64 text. A
            key of Terrace's, "terrace": {"daemon": SOCKET}, has the memory and
            disks of a host's daemon in place of each nvme_path.
        memory_budget: as for AdamW; of everything if that joins (see offload).
            DeepSpeed's JSON has no key. None: a tenth with NVMe, all without.
        process_group: as for AdamW. Its ranks, which all call this, share the
            state at stages 1 and 2; at stage 0, and with None, none does.
        optimizer: for a configuration without one: a torch.optim.AdamW or
            Adam that has not stepped. Its groups and their numbers are taken
            over; it is not used afterwards, nor is a scheduler made for it.
        notes: say every note on standard error; else how many there are, and
            those on what contradicts `known`.
        offload: on one rank, as by terrace.offload(), whose result is
            settings' `offload`. Parameters, with an offload_param at stage 3:
            to "nvme", its paths, unless False; to "cpu", Terrace's memory, if
            True. The optimizer joins if offload_optimizer says the same; else
            gradients stay, and parameters have a share or a tenth. If True,
            cpu_checkpointing moves activations: to either nvme_path, 256 MiB.
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
        numbers, for torch.amp.GradScaler), offload (None: nothing is
        offloaded), `notes` on every key that has no say here, and more.

    Raises:
        ValueError: the configuration is wrong, or contradicts the model, or
            leaves a batch whose numbers do not multiply out; the message has
            the path of the key and its line.
        NotImplementedError: DeepSpeed has it and Terrace does not.
        OSError, MemoryError: as for AdamW; before anything is reserved.
        RankError: another rank of the process_group failed, or is gone.
    """
    read = _read(ranks_of(process_group), config, model, optimizer,
                 _plain_numbers(known), memory_budget, offload)
    made = _make(model, read, memory_budget, offload,
                 process_group if read.is_shared else None)
    settings = read.settings
    scheduler = _scheduler_of(made, read)
    tell_notes(settings['notes'], name_of(config), each=notes)
    return made, scheduler, settings


def _plain_numbers(known: Mapping[str, Any]) -> dict[str, Any]:
    unknown = known.keys() - set(_KNOWN)
    if unknown:
        raise TypeError('terrace: from_deepspeed_config knows no '
                        + ', '.join(sorted(unknown)))
    return {name: plain(value, name) for name, value in known.items()}


def _read(ranks: Ranks, config: Any, model: torch.nn.Module,
          *rest: Any) -> _Read:
    error = None
    try:
        read = _Read(ranks, config, model, *rest)
    except Exception as caught:  # the other ranks are to hear of it
        error = caught
    ranks.agree('reading the configuration', error)
    return read


def _make(model: torch.nn.Module, read: _Read, memory_budget: Any,
          offload: bool | None,
          process_group: Any) -> ConfiguredAdamW | InMemoryOptimizer:
    """The optimizer; before it, of the settings, what is offloaded."""
    cast(model, read.settings)
    below = offload_below(model, read.settings, memory_budget, read.joins,
                          read.plan['threads'], bool(offload))
    read.settings['offload'] = below
    try:
        if read.settings['callers_optimizer'] is not None:
            return InMemoryOptimizer(read.parameters, read.settings)
        return ConfiguredAdamW(read.groups, read.settings, read.plan,
                               process_group, below if read.joins else None)
    except BaseException:
        if below is not None:
            below.close()
        raise


def _scheduler_of(optimizer: ConfiguredAdamW | InMemoryOptimizer,
                  read: _Read) -> ConfiguredSchedule | None:
    if not read.settings.pop('has_schedule'):
        return None
    return ConfiguredSchedule(optimizer, read.native,
                              read.settings['cycles_momentum'])


class _Read:
    """A configuration with what its caller brings.

    Attributes:
        native: the library's reading of it.
        settings: what it asks for, as from_deepspeed_config returns it.
        plan, groups: for ConfiguredAdamW.
        parameters: those that are optimized.
        joins: whether that joins the offloaded model.
        is_shared: whether the ranks share the state.
    """

    def __init__(self, ranks: Ranks, config: Any, model: torch.nn.Module,
                 optimizer: torch.optim.Optimizer | None,
                 known: Mapping[str, Any], memory_budget: Any,
                 offload: bool | None) -> None:
        brought = Brought(
            [(name, parameter) for name, parameter in model.named_parameters()
             if parameter.requires_grad], optimizer, known)
        self.native = _open(config, model, brought, known, ranks, offload)
        self.settings = json.loads(self.native.describe())
        notes = self.settings['notes']
        brought.check(self.settings)
        brought.amend(notes)
        if self.settings['stage'] == 0 and not ranks.alone:
            notes.append(_NOT_SHARED)
            ranks = Ranks(None)
        is_cast = self._is_cast(model)
        if self.settings['callers_optimizer'] is not None:
            self.joins, self.plan = False, IN_MEMORY
        else:
            self.joins = has_one_place(self.settings)
            self.plan = plan_for(self.native, brought, ranks, memory_budget,
                                 self.joins, is_cast)
            notes += self.plan['notes']
        self.groups = brought.groups
        self.parameters = [parameter for _, parameter in brought.named]
        self.is_shared = not ranks.alone

    def _is_cast(self, model: torch.nn.Module) -> bool:
        """With a note, of parameters of another type."""
        dtype = self.settings['parameter_dtype']
        others = {DTYPES.get(p.dtype, str(p.dtype)) for p in model.parameters()
                  if DTYPES.get(p.dtype) != dtype}
        if dtype == 'fp32' or not others:
            return False
        self.settings['notes'].append({
            'kind': 'meaning', 'path': f'{dtype}.enabled',
            'text': f'parameters are cast from {", ".join(sorted(others))} to '
                    f'{dtype}, as in DeepSpeed; their masters are fp32'})
        return True


def _open(config: Any, model: torch.nn.Module, brought: Brought,
          known: Mapping[str, Any], ranks: Ranks,
          offload: bool | None) -> Any:
    dtypes = {parameter.dtype for _, parameter in brought.named}
    is_in_memory = all(parameter.device.type == 'cpu'
                       for parameter in model.parameters())
    caller = {**known, 'text_has_lines': not isinstance(config, Mapping),
              'parameters': _PARAMETERS[offload] if is_in_memory
              else 'elsewhere',
              'offloads_activations': bool(offload),
              'is_cast': can_cast(model), 'optimizers': kinds()}
    if brought.numbers is not None:
        caller['adam'] = brought.numbers
    if len(dtypes) == 1 and (dtype := dtypes.pop()) in DTYPES:
        caller['parameter_dtype'] = DTYPES[dtype]
    if torch.distributed.is_available() and (
            torch.distributed.is_initialized()):
        caller['world_size'] = torch.distributed.get_world_size()
    caller['shares_state'] = not ranks.alone
    native = library.new_zero_config()
    check(native.open(text_of(config), json.dumps(caller)))
    return native
