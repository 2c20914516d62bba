"""The optimizer's state as its users read it: copies, made when asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from terrace import _checks, _errors, _groups, _library, _ranks, _share

if TYPE_CHECKING:
    from terrace._optimizer import AdamW

# As torch.optim.AdamW names them, in the order in which the library takes
# them; the master is of 16-bit parameters only.
KEYS = ('master_param', 'exp_avg', 'exp_avg_sq')
# Elements of each array of a parameter that are under way at a time.
_RANGE = 1 << 20
# Of state that is copied in one call.
_COPIED_BYTES = 1 << 30
# Of a kind that is not wanted, or not there.
_NOTHING = torch.empty(0, device='cpu')


class StateView(Mapping):
    """`optimizer.state`: from each parameter that was stepped to a dict with

        step          float32 scalar, as in torch.optim.AdamW
        exp_avg       float32, the parameter's shape: first moment
        exp_avg_sq    float32, the parameter's shape: second moment
        master_param  float32, the parameter's shape; of 16-bit parameters

    Each look at a value copies it out of its tier: 8 or 12 bytes an element.
    Writing into a copy changes nothing; load_state_dict does.
    """

    def __init__(self, optimizer: AdamW):
        self._optimizer = optimizer

    def __len__(self) -> int:
        return self._optimizer._native.count_stepped()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([parameter for _, parameter in self._stepped()])

    def __contains__(self, parameter: object) -> bool:
        return self._position(parameter) is not None

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        position = self._position(parameter)
        if position is None:
            return {}  # as torch's defaultdict
        return copied(self._optimizer, [(position, parameter)])[0]

    def __repr__(self) -> str:
        return f'<state of {len(self)} parameters, copied when read>'

    def _position(self, parameter: object) -> int | None:
        """Of one that was stepped."""
        optimizer = self._optimizer
        position = optimizer._positions.of(parameter, optimizer.param_groups)
        if position is None:
            return None
        steps = optimizer._native.steps()
        return position if position < len(steps) and steps[position] else None

    def _stepped(self) -> list[tuple[int, torch.Tensor]]:
        return [(position, parameter) for position, (parameter, steps)
                in enumerate(zip(self._optimizer._parameters(),
                                 self._optimizer._native.steps()))
                if steps]


class WholeState(StateView):
    """The same to who takes all of it: read in one call, or in one for each
    GiB, between which Ctrl-C is heard."""

    def items(self) -> Any:
        found = self._stepped()
        return zip([parameter for _, parameter in found],
                   copied(self._optimizer, found))


def checked(state: dict[str, Any], parameter: torch.Tensor,
            name: str) -> dict[str, Any]:
    """One parameter's state out of a state_dict; `write` can take it.
    ValueError names the parameter."""
    if 'max_exp_avg_sq' in state:
        raise ValueError(f"terrace: the state of '{name}' is amsgrad's")
    missing = {'step', 'exp_avg', 'exp_avg_sq'} - state.keys()
    if missing:
        raise ValueError(f"terrace: the state of '{name}' has no "
                         f'{", ".join(sorted(missing))}')
    step = float(state['step'])
    if not (step >= 0 and step == int(step)):
        raise ValueError(f"terrace: the step of '{name}' is {step}")
    result: dict[str, Any] = {'step': int(step)}
    for key in KEYS:
        if key not in state or (key == 'master_param' and
                                parameter.dtype == torch.float32):
            continue
        value = state[key]
        if value.shape != parameter.shape:
            raise ValueError(
                f"terrace: {key} of '{name}' is {tuple(value.shape)}, not "
                f'{tuple(parameter.shape)}')
        result[key] = value.detach()
    return result


def keys_of(parameter: torch.Tensor) -> tuple[str, ...]:
    return KEYS[1:] if parameter.dtype == torch.float32 else KEYS


@contextlib.contextmanager
def reading(optimizer: AdamW) -> Iterator[None]:
    """Within it the part of the state that was read last stays in memory."""
    optimizer._readers += 1
    try:
        yield
    finally:
        optimizer._readers -= 1
        if not optimizer._readers:
            optimizer._native.end_reading()


def read(optimizer: AdamW, position: int, offset: int,
         arrays: Mapping[str, torch.Tensor], native: Any = None) -> None:
    """Fills float32 tensors of one length, by key, with the elements from
    `offset` on. A master that is not there yet is made from the parameter, as
    the next step will. `native`: another than the optimizer's."""
    if native is None:
        native = optimizer._native

    def outcome() -> _errors.Outcome:
        return native.read(
            position, offset, *(arrays.get(key, _NOTHING) for key in KEYS))

    result = outcome()
    if _errors.has_no_master(result):
        arrays = dict(arrays)
        master = arrays.pop('master_param')
        elements = _groups.parameter_at(
            optimizer.param_groups, position).detach().reshape(-1)
        master.copy_(elements[offset:offset + master.numel()].reshape(
            master.shape))
        result = outcome() if arrays else _errors.DONE
    _errors.check(result)


def copied(optimizer: AdamW, stepped: Sequence[tuple[int, torch.Tensor]]
           ) -> list[dict[str, torch.Tensor]]:
    """All the state of parameters that were stepped, given with their
    positions."""
    copies: list[dict[str, torch.Tensor]] = []
    first = 0
    while first < len(stepped):
        end, size = first, 0
        while end < len(stepped) and size < _COPIED_BYTES:
            size += _ranks.state_bytes(stepped[end][1])
            end += 1
        part = stepped[first:end]
        outcome, tensors = optimizer._native.copy_states(
            [position for position, _ in part],
            [parameter for _, parameter in part])
        _errors.check(outcome)
        taken = iter(tensors)
        copies += [dict(zip(('step', *keys_of(parameter)), taken))
                   for _, parameter in part]
        first = end
    return copies


def found_in(given: dict[str, Any],
             optimizer: AdamW) -> list[tuple[int, dict[str, Any]]]:
    """The states in a state_dict by position, each checked."""
    positions = {key: position for position, key in enumerate(
        key for group in given['param_groups'] for key in group['params'])}
    parameters = optimizer._parameters()
    _, names, _ = _groups.described(optimizer.param_groups)
    return [(positions[key],
             checked(state, parameters[positions[key]],
                     names[positions[key]]))
            for key, state in given['state'].items()
            if key in positions and state]


def write(optimizer: AdamW, states: list[tuple[int, dict[str, Any]]],
          done_with: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Replaces all state. Of tensors that are not float32 in CPU memory a
    range is copied at a time."""
    if optimizer._holds_nothing:
        if not optimizer._ranks.alone:
            optimizer._native.stepped = False
        return
    native = optimizer._native
    _errors.check(native.reset())
    steps = [0] * len(optimizer._parameters())
    # In the order in which they lie in their tier.
    for position, state in sorted(states, key=lambda item: item[0]):
        flat = {key: state[key].reshape(-1) for key in KEYS if key in state}
        for first in range(0, flat[KEYS[1]].numel(), _RANGE):
            parts = {key: array[first:first + _RANGE]
                     for key, array in flat.items()}
            _write_part(native, position, first, parts)
            if done_with is not None:
                done_with(parts)
        if done_with is not None:
            done_with(state)
        steps[position] = int(state['step'])
    if states:
        _errors.check(native.set_steps(max(steps), steps))


def _write_part(native: Any, position: int, offset: int,
                arrays: Mapping[str, torch.Tensor]) -> None:
    _errors.check(native.write(position, offset, *(
        arrays.get(key, _NOTHING).to(device='cpu',
                                     dtype=torch.float32).contiguous()
        for key in KEYS)))


def extend(optimizer: AdamW) -> None:
    """Adds the last group's parameters to the compiled optimizer."""
    unfinished = (None if optimizer._ranks.alone else
                  optimizer._native.unfinished())
    if unfinished:
        raise unfinished
    _checks.check_apart(optimizer)
    before = optimizer._parameters()
    last = len(optimizer.param_groups) - 1
    count = len(before) - len(optimizer.param_groups[last]['params'])
    if not any(p.numel() for p in optimizer._ranks.own(before[:count])):
        return optimizer._reopen()
    optimizer._ranks.assign(optimizer.param_groups)
    outcome = optimizer._native.add(*_groups.described(optimizer.param_groups,
                                                       last))
    if outcome[0] == 0:
        return None
    error = _errors.exception_of(outcome)
    if not (isinstance(error, MemoryError) and optimizer._budget.may_grow(
            optimizer.stats()['memory_bytes'])):
        raise error
    move(optimizer)
    return None


def move(optimizer: AdamW, groups: int | None = None) -> None:
    """All state to a compiled optimizer made anew: for the first `groups` only,
    or for all of them, of which the last one is new. If that cannot be made
    and filled, the old one stays."""
    steps = optimizer._steps()
    left = [] if groups is None else optimizer.param_groups[groups:]
    del optimizer.param_groups[len(optimizer.param_groups) - len(left):]
    try:
        # One that is gone is a directory that fails where nothing is lost.
        if any(os.path.exists(path) and not os.path.isdir(path)
               for path in optimizer._paths):
            _move_through_memory(optimizer, steps, new=groups is None)
        else:
            _move_beside(optimizer, steps)
    except BaseException:
        optimizer.param_groups += left
        optimizer._ranks.assign(optimizer.param_groups)
        raise


def _move_beside(optimizer: AdamW, steps: list[int]) -> None:
    """A range at a time. Both are there meanwhile, each with its memory and its
    room on disk."""
    old = optimizer._native
    optimizer._native = _share.of(_library.new_optimizer(), optimizer._ranks)
    try:
        optimizer._reopen()
        if not optimizer._holds_nothing:
            _copy(optimizer, old, steps[:len(optimizer._parameters())])
    except BaseException:
        optimizer._native.close()
        optimizer._native = old
        raise
    old.close()  # nothing is lost with what it could not remove


def _move_through_memory(optimizer: AdamW, steps: list[int],
                         new: bool) -> None:
    """Where a path is one optimizer's at a time."""
    stepped = [(i, parameter) for i, (parameter, step)
               in enumerate(zip(optimizer._parameters(), steps)) if step]
    kept = list(zip([i for i, _ in stepped], copied(optimizer, stepped)))
    try:
        optimizer._reopen()
        write(optimizer, kept)
    except BaseException:
        added = [optimizer.param_groups.pop()] if new else []
        optimizer._profile = ''  # no state is lost for want of a hint
        try:
            optimizer._reopen()
            write(optimizer, kept)
        finally:
            optimizer.param_groups += added
        raise


def _copy(optimizer: AdamW, source: Any, steps: list[int]) -> None:
    """All state of another compiled optimizer of the same parameters."""
    parameters = optimizer._parameters()
    for position, step in enumerate(steps):
        count = parameters[position].numel() if step else 0
        for first in range(0, count, _RANGE):
            part = {key: torch.empty(min(_RANGE, count - first),
                                     dtype=torch.float32, device='cpu')
                    for key in keys_of(parameters[position])}
            read(optimizer, position, first, part, source)
            _write_part(optimizer._native, position, first, part)
    if any(steps):
        steps = steps + [0] * (len(parameters) - len(steps))
        _errors.check(optimizer._native.set_steps(max(steps), steps))
