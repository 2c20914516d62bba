"""What is said of the parameters without being asked."""

from __future__ import annotations

from typing import Any

from terrace._base.amounts import bytes_text
from terrace._base.message import say
from terrace._state.budget import Budget


def tell_placement(stats: dict[str, Any], count: int, budget: Budget,
                   before: dict[str, Any]) -> None:
    """After the first step, which began when the counters were `before`:
    where the parameters went, what that saved and what it costs."""
    size = stats['parameter_bytes']
    memory = stats['budget_bytes'] - stats['activation_budget_bytes']
    where = f'{bytes_text(min(size, memory))} of memory'
    asked = budget.raised_from(memory, size)
    if asked is not None:
        where += (f' (the least that works; memory_budget={budget.given!r} is '
                  f'{bytes_text(asked)})')
    if len(stats['tiers']) > 1:
        below = ', '.join(tier['name'] for tier in stats['tiers'][1:])
        where += (f', the rest in {below} ({stats["engine"]}); '
                  f'{bytes_text(max(0, size - memory))} of memory saved')
    else:
        where += ', nothing below; no memory saved'
    read, written = (stats[key] - before[key]
                     for key in ('bytes_read', 'bytes_written'))
    say('%s parameters of the model, %s, have %s; the first step read %s and '
        'wrote %s', f'{count:,}', bytes_text(size), where, bytes_text(read),
        bytes_text(written))
