"""What stands in a state_dict()."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from terrace._base.groups import Groups, Named, names_of, parameters_in
from terrace._optimizer.checked_state import checked
from terrace._state.store import StateStore

# In a state_dict of one rank: whose it is.
_SHARE = 'terrace_share'


def completed(given: dict[str, Any], store: StateStore,
              groups: Groups) -> dict[str, Any]:
    """With what was collected of other ranks, or with the mark of this one."""
    if store.ranks.alone:
        return given
    collected = store.collected()
    if collected is None:
        given[_SHARE] = _mark(store, groups)
    else:
        positions = _positions(groups)
        given['state'] = dict(sorted({
            **{positions[id(parameter)]: state
               for parameter, state in collected if id(parameter) in positions},
            **given['state']}.items()))
    return given


def states_in(given: dict[str, Any], store: StateStore,
              groups: Groups) -> list[tuple[Named, dict[str, Any]]]:
    """Each parameter's state, checked. ValueError: it is of another rank's
    share, or there is something that cannot be a parameter's state."""
    _check_mark(given, store, groups)
    positions = {key: position for position, key in enumerate(
        key for group in given['param_groups'] for key in group['params'])}
    for key in given['state'].keys() - positions.keys():
        raise ValueError(
            f'terrace: the state_dict has state of {key!r}, which is in none '
            'of its groups; keep what is no state of a parameter beside it')
    parameters, names = parameters_in(groups), names_of(groups)
    return [((names[positions[key]], parameters[positions[key]]),
             checked(state, parameters[positions[key]],
                     partial(names.__getitem__, positions[key])))
            for key, state in given['state'].items() if state]


def _positions(groups: Groups) -> dict[int, int]:
    return {id(parameter): position
            for position, parameter in enumerate(parameters_in(groups))}


def _mark(store: StateStore, groups: Groups) -> dict[str, Any]:
    return {'rank': store.ranks.rank, 'ranks': store.ranks.size,
            'positions': [position for position, parameter
                          in enumerate(parameters_in(groups))
                          if store.keeps(parameter)]}


def _check_mark(given: dict[str, Any], store: StateStore,
                groups: Groups) -> None:
    theirs, ranks = given.get(_SHARE), store.ranks
    if theirs and (ranks.alone or theirs != _mark(store, groups)):
        raise ValueError(
            f'terrace: this is the state of the share of rank '
            f'{theirs["rank"]} of {theirs["ranks"]}, neither of all parameters '
            f'nor of the share of rank {ranks.rank} of {ranks.size}; '
            'consolidate_state_dict() before state_dict() makes a whole one')
