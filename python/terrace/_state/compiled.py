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
from terrace._state.compiled_checkpoint import CompiledCheckpoint
from terrace._state.compiled_gradual import CompiledGradual
from terrace._state.copy_file import CopyFile

_NOTHING_COUNTED: tuple[int, list[int], set[int]] = (-1, [], set())
# Of a kind that is not wanted, or not there.
_NOTHING = torch.empty(0, device='cpu')


class Compiled:
    """torch.classes.terrace.Optimizer, which knows each parameter by its place:
    the first that it was opened with has place 0. Its Outcomes are raised as
    exceptions. Of DTensors it is given the shards that are here. Thread-safe,
    as that is."""

    def __init__(self) -> None:
        self._native = library.new_optimizer()
        self._counted = _Counted()
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
        self._counted.given.clear()
        self._names = list(names)
        self._has_dtensors = any(map(is_dtensor, parameters))

    def add(self, parameters: Sequence[torch.Tensor],
            names: Sequence[str]) -> None:
        check(self._change('add', locals_of(parameters), names))
        self._names += names
        self._has_dtensors |= any(map(is_dtensor, parameters))

    def close(self) -> None:
        self._counted.given.clear()
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

    @property
    def gradual(self) -> CompiledGradual:
        """For a step whose gradients come one after another."""
        return CompiledGradual(self._native, self._change)

    @property
    def checkpoint(self) -> CompiledCheckpoint:
        return CompiledCheckpoint(self._native)

    def skipped(self) -> bool:
        """The last step: a gradient was not finite."""
        return self._native.skipped()

    def incomplete(self) -> bool:
        """A step failed half-way and is to be repeated."""
        return self._native.incomplete()

    def steps(self) -> list[int]:
        """Those of each parameter; not to be changed."""
        return self._counted.steps(self._native)

    def with_state(self) -> set[int]:
        """The places that have any: that were stepped, or given it; not to be
        changed."""
        return self._counted.with_state(self._native)

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
        self._counted.give(self._native, place)

    def forget(self, places: Sequence[int]) -> None:
        """The next step of these is their first."""
        check(self._change('forget', places))
        self._counted.take(places)

    def set_steps(self, steps: Sequence[int], given: Iterable[int]) -> None:
        """`given`: places whose state was written, of whatever step."""
        check(self._change('set_steps', max(steps, default=0), steps))
        self._counted.given.update(given)
        self._counted.forget()

    def reset(self) -> None:
        check(self._change('reset'))
        self._counted.given.clear()

    def load(self, tensors: Sequence[torch.Tensor], names: Sequence[str],
             places: Sequence[int]) -> None:
        """From the checkpoint that `checkpoint.begin_load` opened."""
        self._counted.given.clear()
        check(self._change('load', tensors, names, places))

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
        self._counted.forget()

    def _change(self, name: str, *arguments: Any) -> errors.Outcome:
        return self._counted.change(self._native, name, *arguments)


class _Counted:
    """The steps of each parameter of a compiled optimizer, and which have
    state, by place. They are looked up again after each call that may change
    them. Under the interpreter's lock."""

    def __init__(self) -> None:
        self._changes = 0  # begun and ended
        # After how many changes, the steps then, and the places with state.
        self._counted = _NOTHING_COUNTED
        # Places that were given state of step 0, until they have none.
        self.given: set[int] = set()

    def change(self, native: Any, name: str, *arguments: Any
               ) -> errors.Outcome:
        """Calls what may change them."""
        self._changes += 1
        try:
            return getattr(native, name)(*arguments)
        finally:
            self._changes += 1

    def steps(self, native: Any) -> list[int]:
        """Not to be changed."""
        changes, steps, _ = self._counted
        return steps if changes == self._changes else self._count(native)[1]

    def with_state(self, native: Any) -> set[int]:
        """Not to be changed, but by give()."""
        changes, _, places = self._counted
        return places if changes == self._changes else self._count(native)[2]

    def give(self, native: Any, place: int) -> None:
        """That place has state now, which need not be counted again."""
        self.given.add(place)
        self.with_state(native).add(place)

    def take(self, places: Iterable[int]) -> None:
        """These have no state any more."""
        self.given.difference_update(places)
        self.forget()

    def forget(self) -> None:
        self._counted = _NOTHING_COUNTED

    def _count(self, native: Any) -> tuple[int, list[int], set[int]]:
        check(native.check())  # a forked child has none
        # What another thread changes meanwhile makes this an old answer.
        changes, steps = self._changes, native.steps()
        counted = changes, steps, self.given.union(
            place for place, step in enumerate(steps) if step)
        self._counted = counted
        return counted


def _in_order(arrays: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """As the library takes them."""
    return [arrays.get(key, _NOTHING).detach().to(
        device='cpu', dtype=torch.float32).contiguous() for key in KEYS]


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
