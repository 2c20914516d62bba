"""What the library says of itself, as optimizer.stats() returns it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from terrace import _library

if TYPE_CHECKING:
    from terrace._ranks import Ranks


def shaped(description: str, steps: list[int]) -> dict[str, Any]:
    """From the JSON of the compiled optimizer; RuntimeError if it has none."""
    given = json.loads(description)
    if not given:
        raise RuntimeError('terrace: this optimizer is closed, or belongs to '
                           'a parent process')
    seconds = given['seconds']
    return {
        'parameters': given['parameters'],
        'state_bytes': given['state_bytes'],
        'memory_bytes': given['host_budget_bytes'],
        'memory_peak_bytes': given['host_peak_bytes'],
        'resident_bytes': given['resident_bytes'],
        'disk_bytes': sum(path['used_bytes'] for path in given['paths']),
        'bytes_read': given['bytes_read'],
        'bytes_written': given['bytes_written'],
        'staging_bytes': given['staging_bytes'],
        'bytes_from_devices': given['bytes_from_devices'],
        'bytes_to_devices': given['bytes_to_devices'],
        'paths': given['paths'],
        'steps': max(steps, default=0),
        'step_seconds': seconds['total'],
        'compute_seconds': seconds['compute'],
        'blocked_seconds': {cause: seconds[f'blocked_{cause}']
                            for cause in ('read', 'write', 'space')},
        'gradient_norm': given['gradient_norm'],
        'engine': given['engine'],
        'engine_reason': given['engine_reason'],
        'machine_profile': given['machine_profile'],
        'instruction_set': given['instruction_set'],
    }


def of_nothing() -> dict[str, Any]:
    """Of an optimizer that keeps no state: what shaped() has, all zero."""
    return {
        **dict.fromkeys((
            'parameters', 'state_bytes', 'memory_bytes', 'memory_peak_bytes',
            'resident_bytes', 'disk_bytes', 'bytes_read', 'bytes_written',
            'staging_bytes', 'bytes_from_devices', 'bytes_to_devices'), 0),
        'paths': [], 'steps': 0, 'step_seconds': 0.0, 'compute_seconds': 0.0,
        'blocked_seconds': dict.fromkeys(('read', 'write', 'space'), 0.0),
        'gradient_norm': 0.0, 'engine': '', 'engine_reason': '',
        'machine_profile': '', 'instruction_set': _library.instruction_set()}


def with_ranks(stats: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    stats.update(rank=ranks.rank, ranks=ranks.size)
    if not ranks.alone:
        stats.update(bytes_sent=ranks.bytes_sent,
                     bytes_received=ranks.bytes_received)
        stats['blocked_seconds']['ranks'] = ranks.seconds
    return stats
