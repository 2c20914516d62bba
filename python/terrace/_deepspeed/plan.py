"""How much memory and disk a configuration asks for."""

from __future__ import annotations

import json
from typing import Any

from terrace._base.arrays import state_bytes
from terrace._base.errors import check
from terrace._base.local_shard import locals_of
from terrace._deepspeed.brought import Brought
from terrace._ranks.ranks import Ranks
from terrace._ranks.shares import Shares
from terrace._state.budget import Budget

_CAST_BYTES = 12  # of state, an element: master and moments

# Of state that stays in memory, which no path and no budget bounds.
IN_MEMORY = {'paths': None, 'daemon': None, 'threads': 0, 'chunk_bytes': 0,
             'memory_budget': None}


def plan_for(native: Any, brought: Brought, ranks: Ranks,
             memory_budget: Any, joins: bool,
             is_cast: bool) -> dict[str, Any]:
    """Of what this rank keeps. `joins`: with an offloaded model, whose budget
    and paths are the state's too. `is_cast`: to 16 bits, before it is made."""
    shares = Shares(ranks.size)
    # Group after group, as the optimizer shares them out.
    for group in brought.groups:
        shares = shares.extended([p for _, p in group['params']])
    budget = Budget.of(memory_budget, has_paths=False)
    state = sum(_CAST_BYTES * p.numel() if is_cast else state_bytes(p)
                for _, p in brought.named)
    asked = budget.bytes_of(state // ranks.size) or 0
    own = [(name, parameter) for name, parameter in brought.named
           if shares.owner(parameter) == ranks.rank]
    if not any(parameter.numel() for _, parameter in own):
        own = brought.named  # it will keep nothing, but the paths are looked at
    outcome = native.plan(locals_of(parameter for _, parameter in own),
                          [name for name, _ in own], asked, budget.is_share)
    check(outcome)
    plan = json.loads(outcome[1])
    plan['daemon'] = plan['daemon'] or None
    if plan['daemon'] is not None:
        plan['paths'] = None
    if joins:
        return {**plan, 'memory_budget': None, 'paths': None, 'daemon': None}
    # A share, which none given is too, follows the state.
    plan['memory_budget'] = (
        memory_budget if memory_budget is None or budget.is_share
        else plan['budget_bytes'])
    if budget.is_share and plan['budget_bytes'] > asked:
        plan['notes'].append({
            'kind': 'sized', 'path': 'memory_budget',
            'text': f'{memory_budget} of the state is {asked} bytes; the '
                    f'least that works is {plan["budget_bytes"]}'})
    return plan
