"""What is said of the state without being asked."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from terrace._base.amounts import bytes_text
from terrace._base.arrays import state_bytes
from terrace._base.groups import Groups, parameters_in
from terrace._base.local_shard import sharding_of
from terrace._base.message import say
from terrace._state.copy_file import is_wanted
from terrace._state.store import StateStore

_LARGE_BYTES = 64 << 20


def tell_placement(store: StateStore, groups: Groups) -> None:
    """After the first step: where the state went and what that saved."""
    stats, budget = store.stats(), store.settings.budget
    who = ('' if store.ranks.alone else
           f'rank {stats["rank"]} of {stats["ranks"]}: ')
    state, memory = stats['state_bytes'], stats['memory_bytes']
    if store.settings.home is not None and store.settings.home.is_below:
        say('the state of %s parameters, %s, has joined the offloaded model: '
            '%s of memory for all of it [%s]', f'{stats["parameters"]:,}',
            bytes_text(state), bytes_text(memory), stats['instruction_set'])
        return
    devices = _on_devices(filter(store.keeps, parameters_in(groups)))
    where = f'{bytes_text(memory)} of memory'
    asked = budget.raised_from(memory, store.state_bytes)
    if asked is not None:
        where += (f' (the least that works; {budget.said} is '
                  f'{bytes_text(asked)})')
    if stats['disk_bytes'] > 0:
        directories = ', '.join(path['directory'] for path in stats['paths'])
        where += (f', the rest in {directories} ({stats["engine"]}); '
                  f'{bytes_text(max(0, state - memory))} of memory saved')
    else:
        where += ', nothing on disk' + ('' if devices else '; no memory saved')
    for device, size in sorted(devices.items()):
        where += f'; {bytes_text(size)} saved on {device}'
    if devices:
        where += f', {bytes_text(stats["staging_bytes"])} pinned for copies'
    say('%sthe state of %s parameters, %s, has %s [%s]', who,
        f'{stats["parameters"]:,}', bytes_text(state), where,
        stats['instruction_set'])
    for path in stats['paths']:
        for job in path['jobs_elsewhere']:
            say('%s, is left alone: it may live on another host; remove it if '
                'it does not', job)


def tell_copy(store: StateStore, groups: Groups) -> None:
    """Before a large state_dict is made."""
    size = store.stats()['state_bytes']
    if size < _LARGE_BYTES:
        return
    can_stream = not any(map(sharding_of, parameters_in(groups)))
    if is_wanted(store.settings, size):
        say('state_dict() copies the state to an unnamed file in %s: %s%s',
            ' or '.join(store.settings.directories), bytes_text(size),
            '; terrace.save() writes a checkpoint without the copy'
            if can_stream else '')
    else:
        say('state_dict() copies the state into memory: %s%s',
            bytes_text(size),
            '; terrace.save() streams it' if can_stream else '')


def _on_devices(parameters: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes of the state of the parameters on each device that is no CPU:
    where torch.optim.AdamW would have it."""
    devices: dict[str, int] = {}
    for parameter in parameters:
        if parameter.device.type != 'cpu':
            name = str(parameter.device)
            devices[name] = devices.get(name, 0) + state_bytes(parameter)
    return devices
