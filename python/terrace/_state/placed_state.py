"""State of parameters, each at its place in a compiled optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from terrace._base.groups import Named
from terrace._base.message import say
from terrace._base.watched.gradients import GradientWatch
from terrace._ranks.interrupts import uninterrupted
from terrace._state import transfer
from terrace._state.carried import Carried
from terrace._state.compiled import Compiled
from terrace._state.copy_file import CopyFile
from terrace._state.places import Places
from terrace._state.settings import Settings

State = Mapping[str, Any]


class PlacedState:
    """Which parameters have state, and what it is. The state moves when there
    are more parameters, or others.

    Attributes:
        settings: what the optimizer was asked for.
        places: the parameters whose state is kept here, each at its place.
        opened: the compiled optimizer, with its state or while that is carried.
    """

    def __init__(self, settings: Settings, frees_gradients: bool = False
                 ) -> None:
        """`frees_gradients`: the step takes each gradient as backward makes
        it, so that none goes below."""
        self.settings = settings
        self.opened = Compiled()
        # The state that `opened` lacks, in whole or in part, while it moves.
        self._carried: Carried | None = None
        self.places = Places()
        self._readers = 0
        self._watch = (None if settings.home is None or frees_gradients
                       else GradientWatch(settings.home))

    def keeps(self, parameter: object) -> bool:
        """Whether memory or disk is reserved here for the parameter's state."""
        return parameter in self.places

    @property
    def holds_state(self) -> bool:
        """Whether it takes any room: parameters may have no elements."""
        return self.places.have_elements

    def steps_of(self, parameter: object) -> int:
        """The number of steps in which the parameter had a gradient; 0 also
        where no state of it is here."""
        place = self.places.of(parameter)
        if place is None:
            return 0
        steps = self.source.steps()
        return steps[place] if place < len(steps) else 0

    def has_state(self, parameter: object) -> bool:
        """Whether state of it is here: it was stepped, or given state, of
        whatever step."""
        return self.places.of(parameter) in self.source.with_state()

    def with_state(self) -> list[torch.Tensor]:
        """Returns the parameters whose state is here."""
        return [self.places.parameters[place]
                for place in sorted(self.source.with_state())]

    def count_with_state(self) -> int:
        return len(self.source.with_state())

    def copies(self, parameters: Sequence[torch.Tensor],
               file: CopyFile | None = None) -> list[dict[str, torch.Tensor]]:
        """All the state of parameters that have it; see CopyFile."""
        return transfer.copies(self.source, self.places.numbers(parameters),
                               [self.places.values_as_kept(parameter)
                                for parameter in parameters], file)

    def kept(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters as their state is: of that dtype and shape."""
        return [self.places.as_kept(parameter) if self.keeps(parameter)
                else parameter for parameter in parameters]

    def is_cast(self, parameter: torch.Tensor) -> bool:
        """Whether it is of another dtype or shape than its state."""
        return self.places.is_cast(parameter)

    def read(self, parameter: torch.Tensor, offset: int,
             arrays: Mapping[str, torch.Tensor]) -> None:
        """Fills float32 tensors of one length, by key, with the elements from
        `offset` on."""
        transfer.read(self.source, self.places.of(parameter),
                      self.places.values_as_kept(parameter), offset, arrays)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within this context the part of the state that was read last stays
        in memory."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self.source.end_reading()

    @property
    def state_bytes(self) -> int:
        """The state of all parameters, of which a budget may be a share."""
        return self.places.state_bytes

    @property
    def gradient_bytes(self) -> int:
        """The gradients, of all parameters, that go below."""
        return 0 if self._watch is None else self._watch.gradient_bytes

    def close(self) -> None:
        if self._watch is not None:
            self._watch.end()
        self._carried = None
        self.opened.close()

    # What the kinds of a store, its share and its stepping use.

    @property
    def compiled(self) -> Compiled:
        """The compiled optimizer with all the state, to be changed. State that
        is carried goes to its place first; each use raises what keeps it from
        there."""
        if self._carried is not None:
            self._arrive()
        return self.opened

    @property
    def source(self) -> Compiled | Carried:
        """What has the state, to be read."""
        return self.opened if self._carried is None else self._carried

    def _carried_stats(self) -> dict[str, int]:
        """Of state that is at no place yet, but in memory."""
        if self._carried is None:
            return {}
        return {'state_bytes': self._carried.bytes,
                'memory_bytes': self._carried.bytes}

    def reserve(self, named: Sequence[Named]) -> None:
        """Reserves memory and disk for the state of these parameters. Ctrl-C
        comes after it."""
        if not named:
            return
        with uninterrupted():
            before = self.places
            self.places = before.extended(named)
            try:
                if before:
                    self._extend(named, before)
                else:
                    self._open()
            except BaseException:
                if len(self.source.steps()) <= len(before):
                    self.places = before
                raise

    def _extend(self, named: Sequence[Named], before: Places) -> None:
        self.watch_gradients(named)
        try:
            self.compiled.add([parameter for _, parameter in named],
                               [name for name, _ in named])
        except MemoryError:
            if not self.settings.budget.may_grow(
                    self.compiled.stats()['memory_bytes']):
                raise
            after, self.places = self.places, before
            self.make_anew(after)

    def watch_gradients(self, named: Iterable[Named]) -> None:
        """Of parameters of an offloaded model gradients go below from now
        on."""
        if self._watch is not None:
            self._watch.add(named)

    def fill(self, states: Mapping[int, State],
             done_with: Callable[[State], None] | None = None) -> None:
        """Replaces all state, by place; after an error there is none."""
        if not self.places:
            return
        compiled = self.compiled
        try:
            transfer.replace(compiled, len(self.places), states, done_with)
        except BaseException:
            compiled.reset()
            raise

    def _open(self) -> None:
        """Makes the compiled optimizer for all parameters, without state."""
        if not self.places:
            return
        for tier in self.settings.unsafe_tiers:
            say('unsafe media: an ordinary file may play the persistent '
                'memory of %r; what it holds does not outlive a power failure',
                tier)
        if self.settings.home is not None:
            self.settings.home.join(self)
        self.watch_gradients(self.places.named)
        try:
            self.opened.open(self.places.kept, self.places.names,
                              self.settings.for_library(self.state_bytes),
                              self.settings.home)
        except MemoryError as error:
            raise self.settings.explain(error) from None

    def make_anew(self, places: Places,
                  without: Sequence[torch.Tensor] = ()) -> None:
        """All state to a compiled optimizer of these places, which are some of
        the old ones or have some more behind them; that of those `without` it
        is dropped. If that cannot be made and filled, all stays as it was.
        Ctrl-C comes after it. RuntimeError: a step is unfinished."""
        if self.compiled.incomplete():
            raise RuntimeError('terrace: the state cannot go to another place '
                               'in the middle of a step; repeat the step '
                               'first')
        with uninterrupted():
            if self.settings.has_exclusive_path:
                self._move_through_memory(places, without)
            else:
                self._move_beside(places, without)

    def _move_beside(self, places: Places,
                     without: Sequence[torch.Tensor]) -> None:
        """A range at a time. Both are there meanwhile, each with its memory
        and its room on disk."""
        before, old = self.places, self.opened
        try:
            self.opened, self.places = Compiled(), places
            self._open()
            if self.places:
                transfer.copy(old, self.opened, places.kept[:len(before)],
                              map(before.of, without))
        except BaseException:
            new, self.opened, self.places = self.opened, old, before
            if new is not old:
                _close_quietly(new)
            raise
        _close_quietly(old)

    def _move_through_memory(self, places: Places,
                             without: Sequence[torch.Tensor] = ()) -> None:
        """Where a path is one optimizer's at a time: between the old one and
        the new one memory alone has the state."""
        dropped = set(map(id, without))
        staying = [p for p in self.with_state()
                   if p in places and id(p) not in dropped]
        self._carried = carried = Carried(self.opened, self.places)
        try:
            self.places = places
            self._bring(carried.of(staying, places))
        except BaseException:
            self._return()
            raise

    def _return(self) -> None:
        """What is carried, after an error: to where it was, or nowhere yet."""
        # No state is lost for want of a hint.
        self.settings = dataclasses.replace(self.settings, machine_profile='')
        try:
            self._arrive()
        except Exception as error:  # what was in the way first is raised
            say('the state of the optimizer can neither go to its new place '
                'nor back: %s; it stays in memory, each use of the optimizer '
                'tries again, and state_dict() has it', str(error))

    def _arrive(self) -> None:
        """What is carried, at its place of before; else it is carried on."""
        if self._carried is None:
            return
        with uninterrupted():
            self.places = self._carried.places
            self._bring(self._carried.states)

    def _bring(self, states: Mapping[int, State]) -> None:
        """All that is to arrive, to a compiled optimizer of all places."""
        if self.places:
            self._open()
            transfer.replace(self.opened, len(self.places), states)
        self._carried = None


def _close_quietly(compiled: Compiled) -> None:
    """Nothing is lost with what it cannot remove."""
    with contextlib.suppress(OSError, RuntimeError, MemoryError):
        compiled.close()
