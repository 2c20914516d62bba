"""What the package says without being asked: through the logger `terrace`, at
level INFO. Where no logging is configured it goes to standard error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from terrace._arguments import bytes_text

if TYPE_CHECKING:
    from terrace._optimizer import AdamW

_LARGE_BYTES = 1 << 30

logger = logging.getLogger('terrace')


def _say(text: str, *arguments: object) -> None:
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('terrace: %(message)s'))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    logger.info(text, *arguments)


def tell_placement(optimizer: AdamW) -> None:
    """After the first step: where the state went and what that saved."""
    stats = optimizer.stats()
    who = ('' if stats['ranks'] == 1 else
           f'rank {stats["rank"]} of {stats["ranks"]}: ')
    state, memory = stats['state_bytes'], stats['memory_bytes']
    devices = _on_devices(optimizer)
    where = f'{bytes_text(memory)} of memory'
    if optimizer._budget.was_raised(memory):
        where += (f' (the least that works; memory_budget='
                  f'{optimizer._budget.given!r} is '
                  f'{bytes_text(optimizer._budget.asked_bytes)})')
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
    _say('%sthe state of %s parameters, %s, has %s [%s]', who,
         f'{stats["parameters"]:,}', bytes_text(state), where,
         stats['instruction_set'])


def _on_devices(optimizer: AdamW) -> dict[str, int]:
    """Bytes of the state of the parameters on each device that is no CPU:
    where torch.optim.AdamW would have it."""
    devices: dict[str, int] = {}
    for parameter in optimizer._parameters():
        if parameter.device.type != 'cpu':
            size = parameter.numel() * (
                8 if parameter.dtype == torch.float32 else 12)
            name = str(parameter.device)
            devices[name] = devices.get(name, 0) + size
    return devices


def tell_copy(optimizer: AdamW) -> None:
    """Before a large state_dict is made."""
    size = optimizer.stats()['state_bytes']
    if size >= _LARGE_BYTES:
        _say('state_dict() copies the state into memory: %s',
             bytes_text(size))


def tell_notes(notes: list[dict[str, str]], name: str, each: bool) -> None:
    """On keys of a configuration that have no say, or another one: one line,
    or, where they are asked for, one of each. What contradicts the caller says
    itself always."""
    quiet = [note for note in notes if note['kind'] != 'contradicted']
    if each or len(quiet) <= 1:
        quiet = []
    else:
        _say('%d notes on %s; notes=True lists them, settings["notes"] has '
             'them', len(quiet), name)
    for note in notes:
        if note not in quiet:
            _say('%s: %s', note['path'], note['text'])
