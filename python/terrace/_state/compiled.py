"""The compiled optimizer."""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from terrace._base import errors, library
from terrace._base.arrays import KEYS, keys_of, step_tensor
from terrace._base.errors import check
from terrace._base.local_shard import (is_dtensor, local_to_step, locals_of,
                                       mark_written, placed_as)
from terrace._ranks.exchange import give_up_all
from terrace._state.copy_file import CopyFile

_NOTHING_COUNTED: tuple[int, list[int], set[int]] = (-1, [], set())
# Of a kind that is not wanted, or not there.
_NOTHING = torch.empty(0, device='cpu')


class Compiled:
    """torch.classes.terrace.Optimizer, which knows each parameter by its place:
    the first that it was opened with has place 0. Its Outcomes are raised as
    exceptions, and its counters are looked up once after each call that may
    change them. Of DTensors it is given the shards that are here. Thread-safe,
    as that is."""

    def __init__(self) -> None:
        self._native = library.new_optimizer()
        self._changes = 0  # begun and ended
        # After how many changes, the steps then, and the places with state.
        self._counted = _NOTHING_COUNTED
        # Places that were given state of step 0, until they have none.
        self._given: set[int] = set()
        self._names: list[str] = []  # by place
        self._has_dtensors = False
        _all.add(self)

    def open(self, parameters: Sequence[torch.Tensor], names: Sequence[str],
             settings: str, home: Any = None) -> None:
        """Ends what was open before. `home`: an offloaded model that it
        joins."""
        model = None if home is None else home.native
        check(self._change('open', locals_of(parameters), names, settings,
                           model))
        self._given.clear()
        self._names = list(names)
        self._has_dtensors = any(map(is_dtensor, parameters))

    def add(self, parameters: Sequence[torch.Tensor],
            names: Sequence[str]) -> None:
        check(self._change('add', locals_of(parameters), names))
        self._names += names
        self._has_dtensors |= any(map(is_dtensor, parameters))

    def close(self) -> None:
        self._given.clear()
        check(self._change('close'))

    def check_apart(self, parameters: Sequence[torch.Tensor],
                    names: Callable[[], Sequence[str]]) -> None:
        """No two share memory: the step writes all of them at once. Those that
        are where they were cost one look at each address. Of DTensors it takes
        the shards."""
        outcome = self._native.check_apart(parameters, [])
        if outcome[0]:
            check(self._native.check_apart(parameters, names()))

    def step(self, parameters: Sequence[torch.Tensor], group_of: torch.Tensor,
             numbers: Sequence[float], scale: float,
             everything: Sequence[torch.Tensor]) -> None:
        """`group_of`: int64, -1 of one that is not stepped."""
        self._step('step', parameters, group_of, numbers, scale, everything)

    def _step(self, kind: str, parameters: Sequence[torch.Tensor],
              *arguments: Any) -> None:
        shards = parameters
        if self._has_dtensors:
            shards = list(map(local_to_step, parameters, self._names))
        outcome = self._change(kind, shards, *arguments)
        if self._has_dtensors:
            mark_written([p for p in parameters
                          if is_dtensor(p) and p.grad is not None])
        check(outcome)

    def step_late(self, parameters: Sequence[torch.Tensor],
                  group_of: torch.Tensor, numbers: Sequence[float],
                  scale: float, everything: Sequence[torch.Tensor]) -> None:
        """As step(), of which the updates go on. What comes next waits."""
        self._step('step_late', parameters, group_of, numbers, scale,
                   everything)

    def flush(self) -> None:
        """Waits for them. What failed and was raised before is tried again."""
        check(self._change('flush'))

    def settle(self) -> None:
        """Waits for them, and raises what failed, each time."""
        check(self._change('settle'))

    def begin_gradual(self, parameters: Sequence[torch.Tensor],
                      group_of: torch.Tensor, numbers: Sequence[float],
                      order: Sequence[int]) -> None:
        """A step whose gradients come one after another; arguments as of
        step(), and the places of those that are stepped, as their gradients
        are expected."""
        check(self._change('begin_gradual', parameters, group_of, numbers,
                           order))

    def supply(self, place: int, parameter: torch.Tensor) -> None:
        """Takes the gradient of one, which is then None, and goes on."""
        check(self._native.supply(place, parameter))

    def end_supply(self) -> None:
        """No more gradients come."""
        check(self._native.end_supply())

    def finish_gradual(self) -> None:
        """Waits until the step is done."""
        check(self._change('finish_gradual'))

    def give_up_gradual(self, why: str) -> None:
        """The step has failed, and with it the optimizer. Again: nothing."""
        check(self._change('give_up_gradual', why))

    def skipped(self) -> bool:
        """The last step: a gradient was not finite."""
        return self._native.skipped()

    def incomplete(self) -> bool:
        """A step failed half-way and is to be repeated."""
        return self._native.incomplete()

    def steps(self) -> list[int]:
        """Those of each parameter; not to be changed."""
        changes, steps, _ = self._counted
        return steps if changes == self._changes else self._count()[1]

    def with_state(self) -> set[int]:
        """The places that have any: that were stepped, or given it; not to be
        changed."""
        changes, _, places = self._counted
        return places if changes == self._changes else self._count()[2]

    def read(self, place: int, offset: int,
             arrays: Mapping[str, torch.Tensor]) -> bool:
        """Fills float32 tensors of one length, by key, with the elements from
        `offset` on. False: the parameter has no master yet. What was read last
        stays in memory until end_reading()."""
        outcome = self._native.read(place, offset, *(
            arrays.get(key, _NOTHING) for key in KEYS))
        if errors.has_no_master(outcome):
            return False
        check(outcome)
        return True

    def end_reading(self) -> None:
        self._native.end_reading()

    def copies(self, places: Sequence[int],
               parameters: Sequence[torch.Tensor],
               file: CopyFile | None = None) -> list[dict[str, torch.Tensor]]:
        """All the state of each, `step` too, as new tensors: in memory, or
        mapped from a file that was made for them."""
        outcome, tensors = self._native.copy_states(
            places, locals_of(parameters), file and file.native.object)
        check(outcome)
        taken = iter(tensors)
        return [{'step': step_tensor(next(taken).item()),
                 **{key: placed_as(parameter, next(taken))
                    for key in keys_of(parameter)}}
                for parameter in parameters]

    def write(self, place: int, offset: int,
              arrays: Mapping[str, torch.Tensor]) -> None:
        """Float32 elements from `offset` on. The first one begins a load, which
        forgets all state, and set_steps() ends it."""
        check(self._native.write(place, offset, *_in_order(arrays)))

    def edit(self, place: int, arrays: Mapping[str, torch.Tensor]) -> None:
        """Replaces whole arrays of the state that there is, or makes it, of
        step 0."""
        check(self._native.edit(place, *_in_order(arrays)))
        self._given.add(place)
        self.with_state().add(place)  # which need not be counted again

    def forget(self, places: Sequence[int]) -> None:
        """The next step of these is their first."""
        check(self._change('forget', places))
        self._given.difference_update(places)
        self.forget_counts()

    def set_steps(self, steps: Sequence[int], given: Iterable[int]) -> None:
        """`given`: places whose state was written, of whatever step."""
        check(self._change('set_steps', max(steps, default=0), steps))
        self._given.update(given)
        self.forget_counts()

    def reset(self) -> None:
        check(self._change('reset'))
        self._given.clear()

    def save(self, directory: str, tensors: Sequence[torch.Tensor],
             names: Sequence[str], places: Sequence[int],
             rest: torch.Tensor) -> int:
        """A checkpoint, of which the bytes are returned. `places`: each
        tensor's, -1 of one that has no state, -2 of one whose state another
        rank has."""
        return int(_said(self._native.save(directory, tensors, names, places,
                                           rest)))

    def begin_save(self, directory: str, rest: torch.Tensor) -> None:
        check(self._native.begin_save(directory, rest))

    def write_part(self, directory: str, tensors: Sequence[torch.Tensor],
                   names: Sequence[str], places: Sequence[int],
                   with_parameters: bool) -> str:
        return _said(self._native.write_part(directory, tensors, names, places,
                                             with_parameters))

    def commit_save(self, parts: Sequence[str]) -> int:
        return int(_said(self._native.commit_save(parts)))

    def end_save(self) -> None:
        self._native.end_save()

    def begin_load(self, directory: str) -> torch.Tensor:
        """Opens a checkpoint; returns what save() was given as `rest`."""
        outcome, rest = self._native.begin_load(directory)
        check(outcome)
        return rest

    def check_fits(self, tensors: Sequence[torch.Tensor],
                   names: Sequence[str], places: Sequence[int]) -> None:
        check(self._native.fits(tensors, names, places))

    def load(self, tensors: Sequence[torch.Tensor], names: Sequence[str],
             places: Sequence[int]) -> None:
        self._given.clear()
        check(self._change('load', tensors, names, places))

    def end_load(self) -> None:
        self._native.end_load()

    def waited_seconds(self) -> float:
        """stats()['updates_waited_seconds'] alone."""
        outcome, seconds = self._native.waited_seconds()
        check(outcome)
        return seconds

    def stats(self) -> dict[str, Any]:
        outcome, text = self._native.stats()
        check(outcome)
        return json.loads(text)

    def forget_counts(self) -> None:
        self._counted = _NOTHING_COUNTED

    def _count(self) -> tuple[int, list[int], set[int]]:
        check(self._native.check())  # a forked child has none
        # What another thread changes meanwhile makes this an old answer.
        changes, steps = self._changes, self._native.steps()
        counted = changes, steps, self._given.union(
            place for place, step in enumerate(steps) if step)
        self._counted = counted
        return counted

    def _change(self, name: str, *arguments: Any) -> errors.Outcome:
        self._changes += 1
        try:
            return getattr(self._native, name)(*arguments)
        finally:
            self._changes += 1


def _in_order(arrays: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """As the library takes them."""
    return [arrays.get(key, _NOTHING).detach().to(
        device='cpu', dtype=torch.float32).contiguous() for key in KEYS]


def _said(outcome: errors.Outcome) -> str:
    check(outcome)
    return outcome[1]


_all: weakref.WeakSet[Compiled] = weakref.WeakSet()


def close_all() -> None:
    """At the end of the process, after which no thread goes on."""
    give_up_all()
    for compiled in list(_all):
        try:
            compiled.settle()
        except Exception as error:  # of a step that had returned
            print(f'{type(error).__name__}: {error}', file=sys.stderr)
        try:
            compiled.close()
        except Exception:  # the process ends: no caller is left to hear of it
            pass


def _forget_all_counts() -> None:
    """In a forked child, where they are asked for again, and refused: looking
    at the process's id would cost more than the look at what was counted."""
    for compiled in _all:
        compiled.forget_counts()


os.register_at_fork(after_in_child=_forget_all_counts)
