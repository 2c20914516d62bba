"""Messages that tell, without being asked, where parameters are."""

from __future__ import annotations

from typing import Any

from terrace._base.amounts import bytes_text
from terrace._base.message import say
from terrace._state.budget import Budget


def tell_placement(stats: dict[str, Any], count: int, budget: Budget,
                   before: dict[str, Any], gradient_bytes: int,
                   state_bytes: int) -> None:
    """Tells after the first step where the parameters went, and the gradients
    and state of optimizers that joined them, what memory that saved and what it
    costs. `before` are the counters as the step began."""
    size = stats['parameter_bytes']
    what = bytes_text(size)
    if gradient_bytes > 0:
        what += f', {bytes_text(gradient_bytes)} of gradients'
    if state_bytes > 0:
        what += f', and {bytes_text(state_bytes)} of state'
    first, *lower = _from_the_top(stats['tiers'])
    memory = stats['budget_bytes'] - stats['activation_budget_bytes']
    on_device = first['kind'] == 'hbm'
    added = 0 if on_device else stats['joined_bytes']
    asked = budget.raised_from(memory - added, size)
    # State is never on a device.
    size += gradient_bytes + (0 if on_device else state_bytes)
    top = first['name'] if on_device else 'memory'
    where = f'{bytes_text(min(size, memory))} of {top}'
    if asked is not None:
        where += (f' (the least that works; {budget.said} is '
                  f'{bytes_text(asked)})')
    if lower and size > memory:
        below = ', '.join(tier['name'] for tier in lower)
        where += (f', the rest in {below} ({stats["engine"]}); '
                  f'{bytes_text(max(0, size - memory))} of {top} saved')
    else:
        where += f', nothing below; no {top} saved'
    read, written = (stats[key] - before[key]
                     for key in ('bytes_read', 'bytes_written'))
    say('%s parameters of the model, %s, have %s; the first step read %s and '
        'wrote %s', f'{count:,}', what, where, bytes_text(read),
        bytes_text(written))


def _from_the_top(tiers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A device's memory stands above the CPU's."""
    return sorted(tiers, key=lambda tier: tier['kind'] != 'hbm')


def tell_beyond(operation: str, size: int) -> bool:
    """Tells of an operation that went beyond the budget, if there was one, and
    answers whether there was."""
    if not operation:
        return False
    say('%s took %s beyond the memory_budget, which all its tensors together '
        'exceed, and gave it back; terrace.clip_grad_norm_() and foreach=False '
        'take one at a time', operation, bytes_text(size))
    return True
