"""State on its way into and out of a compiled optimizer, 4 MiB of each array at
a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from terrace._base.arrays import KEYS, keys_of, state_bytes
from terrace._base.local_shard import local_of
from terrace._state.compiled import Compiled
from terrace._state.copy_file import CopyFile

# Elements of each array of a parameter that are under way at a time.
_RANGE = 1 << 20
# Of state that is copied in one call.
_COPIED_BYTES = 1 << 30

# What each parameter's state is to be, with its place: a tensor for each of
# KEYS that there is, of its shape, and `step`.
PlacedStates = Mapping[int, Mapping[str, Any]]


def read(compiled: Compiled, place: int, parameter: torch.Tensor, offset: int,
         arrays: Mapping[str, torch.Tensor]) -> None:
    """As Compiled.read. A master that is not there yet is made from the
    parameter, as the next step will."""
    if compiled.read(place, offset, arrays):
        return
    rest = dict(arrays)
    master = rest.pop('master_param')
    elements = local_of(parameter).detach().reshape(-1)
    master.copy_(elements[offset:offset + master.numel()].reshape(master.shape))
    if rest:
        compiled.read(place, offset, rest)


def copies(compiled: Compiled, places: Sequence[int],
           parameters: Sequence[torch.Tensor],
           file: CopyFile | None = None) -> list[dict[str, torch.Tensor]]:
    """All the state of parameters that have it: in one call, or in one
    for each GiB, between which Ctrl-C is heard."""
    result: list[dict[str, torch.Tensor]] = []
    first = 0
    while first < len(parameters):
        end, size = first, 0
        while end < len(parameters) and size < _COPIED_BYTES:
            size += state_bytes(parameters[end])
            end += 1
        result += compiled.copies(places[first:end], parameters[first:end],
                                  file)
        first = end
    return result


def replace(compiled: Compiled, count: int, states: PlacedStates,
            done_with: Callable[[Mapping[str, Any]], None] | None = None
            ) -> None:
    """Replaces all the state of `count` parameters. Of tensors that are not
    float32 in CPU memory a range is copied at a time; `done_with` hears of
    each range, and of each state."""
    compiled.reset()
    steps = [0] * count
    # In the order in which they lie in their tier.
    for place, state in sorted(states.items()):
        flat = {key: state[key].reshape(-1) for key in KEYS if key in state}
        for first in range(0, flat['exp_avg'].numel(), _RANGE):
            part = {key: array[first:first + _RANGE]
                    for key, array in flat.items()}
            compiled.write(place, first, part)
            if done_with is not None:
                done_with(part)
        if done_with is not None:
            done_with(state)
        steps[place] = int(state['step'])
    if states:
        compiled.set_steps(steps, states)


def copy(source: Compiled, target: Compiled,
         parameters: Sequence[torch.Tensor], without: Iterable[int]) -> None:
    """The state of these parameters, which both have, from place 0 on; the
    source may have more, and the target. That of some stays behind."""
    given = {place for place in source.with_state() if place < len(parameters)}
    given.difference_update(without)
    for place in sorted(given):
        parameter = parameters[place]
        count = local_of(parameter).numel()
        for first in range(0, count, _RANGE):
            part = {key: torch.empty(min(_RANGE, count - first),
                                     dtype=torch.float32, device='cpu')
                    for key in keys_of(parameter)}
            read(source, place, parameter, first, part)
            target.write(place, first, part)
    if given:
        steps = [0] * len(target.steps())
        for place in given:
            steps[place] = source.steps()[place]
        target.set_steps(steps, given)
