"""The state of parameters, wherever it lies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from terrace._base.groups import Groups, Named, numbers_of, parameters_in
from terrace._base.local_shard import locals_of
from terrace._ranks.ranks import Ranks
from terrace._state import transfer
from terrace._state.arrangement import Arrangement
from terrace._state.compiled import Compiled
from terrace._state.sharded_check import check_sharded
from terrace._state.places import Places
from terrace._state.settings import Settings

State = Mapping[str, Any]


class StateStore:
    """Keeps state for the parameters that it was given, in one process, known
    by the tensors themselves: groups may be changed as their users like.

    One thread at a time changes it. Every method raises what is described at
    terrace.AdamW; after an error of add() all is as before.

    Attributes:
        settings: what it was asked for.
        ranks: those that share the state; here it is alone.
        changes: of the state by steps and loads, since it was made.
    """

    def __init__(self, settings: Settings, ranks: Ranks | None = None) -> None:
        self.settings = settings
        self.ranks = Ranks(None) if ranks is None else ranks
        self.changes = 0
        self._compiled = Compiled()
        self._places = Places()
        self._arrangement = Arrangement()
        self._readers = 0
        # Of a step, where a parameter is in its group several times.
        self._unfinished_turn: tuple[list[torch.Tensor], int] | None = None

    def keeps(self, parameter: object) -> bool:
        """Whether memory or disk is reserved for its state here."""
        return parameter in self._places

    def knows(self, parameter: torch.Tensor) -> bool:
        """Or at another rank."""
        return self.keeps(parameter)

    @property
    def holds_state(self) -> bool:
        """Whether it takes any room: parameters may have no elements."""
        return self._places.have_elements

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        """Reserves memory and disk for the state of more parameters. Where
        that needs more memory than is reserved, it is reserved anew and the
        state copied there."""
        check_sharded(groups, self.settings, self.ranks)
        self._check_apart(groups)
        self._add(self._new_in(groups))

    def mark(self) -> Any:
        """What there is now, for back_to()."""
        return len(self._places)

    def back_to(self, mark: Any) -> None:
        """Without what was added since."""
        if mark < len(self._places):
            self._make_anew(self._places.first(mark))

    def step(self, groups: Groups, scale: float, skip: bool = False,
             error: BaseException | None = None) -> None:
        """Of all parameters of the groups that have a gradient, which is
        divided by `scale`. `error`: what failed before it, to be raised where
        all ranks have heard of it."""
        if error is not None:
            raise error
        if not skip:
            self._step(groups, scale, [])

    def skipped(self) -> bool:
        """The last step: a gradient was not finite."""
        return self._compiled.skipped()

    def is_unfinished(self) -> bool:
        """Whether a step failed and is to be repeated."""
        return (self._unfinished_turn is not None
                or self._compiled.incomplete())

    def steps_of(self, parameter: object) -> int:
        """In which it had a gradient; 0: there is no state of it here."""
        place = self._places.of(parameter)
        if place is None:
            return 0
        steps = self._compiled.steps()
        return steps[place] if place < len(steps) else 0

    def stepped(self) -> list[torch.Tensor]:
        """Those whose state is here."""
        return [parameter for parameter, step
                in zip(self._places.parameters, self._compiled.steps())
                if step]

    def count_stepped(self) -> int:
        return self._compiled.count_stepped()

    def copies(self, parameters: Sequence[torch.Tensor]
               ) -> list[dict[str, torch.Tensor]]:
        """All the state of parameters that were stepped."""
        return transfer.copies(self._compiled, self._places.of, parameters)

    def read(self, parameter: torch.Tensor, offset: int,
             arrays: Mapping[str, torch.Tensor]) -> None:
        """Fills float32 tensors of one length, by key, with the elements from
        `offset` on."""
        transfer.read(self._compiled, self._places.of(parameter), parameter,
                      offset, arrays)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within it the part of the state that was read last stays in
        memory."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._compiled.end_reading()

    def replace(self, states: Sequence[tuple[Named, State]],
                done_with: Callable[[State], None] | None = None) -> None:
        """Replaces all state; after an error there is none. `done_with` hears
        of tensors that were taken over."""
        new = [named for named, _ in states if not self.knows(named[1])]
        if new:
            self.add([new])
        self._fill([(parameter, state) for (_, parameter), state in states
                    if self.keeps(parameter)], done_with)

    def edit(self, parameter: torch.Tensor, state: State,
             name_of: Callable[[], str]) -> None:
        """Replaces those arrays that are given of one parameter's state."""
        if not self.knows(parameter):
            self.add([[(name_of(), parameter)]])
        place = self._places.of(parameter)
        if place is not None:  # else another rank's
            self._compiled.edit(place, state)

    def set_steps(self, given: Mapping[torch.Tensor, int]) -> None:
        """In which these had a gradient."""
        if not (given and self._places):
            return
        steps = list(self._compiled.steps())
        for parameter, step in given.items():
            place = self._places.of(parameter)
            if place is not None:
                steps[place] = step
        self._compiled.set_steps(steps)

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Their next step is their first."""
        self._unfinished_turn = None
        if parameters:
            self._compiled.forget([self._places.of(p) for p in parameters])

    def collect(self, to: int, error: Exception | None = None) -> None:
        """The state of all ranks at one of them, for collected(). `error`:
        what failed before it, as for step()."""
        if error is not None and self.ranks.alone:
            raise error
        if not 0 <= to < self.ranks.size:
            raise ValueError(
                f'terrace: there is no rank {to} of {self.ranks.size}')

    def collected(self) -> list[tuple[torch.Tensor, State]] | None:
        """Other ranks' parameters with their state; None: it was not
        collected, or is of before."""
        return None

    def save(self, directory: str, tensors: Sequence[torch.Tensor],
             names: Sequence[str], rest: torch.Tensor) -> int:
        """Writes a checkpoint of these tensors and all state; its bytes."""
        return self._compiled.save(directory, tensors, names,
                                   self._places_of(tensors), rest)

    def begin_load(self, directory: str) -> torch.Tensor:
        """Opens a checkpoint, until end_load(); the `rest` of save()."""
        return self._compiled.begin_load(directory)

    def check_fits(self, tensors: Sequence[torch.Tensor],
                   names: Sequence[str]) -> None:
        """Whether load() can take it; of several ranks here alone."""
        self._compiled.check_fits(tensors, names, self._places_of(tensors))

    def load(self, tensors: Sequence[torch.Tensor],
             names: Sequence[str]) -> None:
        """Fills tensors and state from the checkpoint that was opened."""
        self.changes += 1
        self._unfinished_turn = None
        self._compiled.load(tensors, names, self._places_of(tensors))

    def end_load(self) -> None:
        self._compiled.end_load()

    def stats(self) -> dict[str, Any]:
        """See AdamW.stats."""
        return {**self._compiled.stats(),
                'rank': self.ranks.rank, 'ranks': self.ranks.size}

    @property
    def state_bytes(self) -> int:
        """Of all its parameters, that a share of the budget is of."""
        return self._places.state_bytes

    def close(self) -> None:
        self._compiled.close()

    # Below: for this class and its kinds.

    def _new_in(self, groups: Sequence[Sequence[Named]]) -> list[Named]:
        """Those that have no place here, each once."""
        return list({id(pair[1]): pair for named in groups for pair in named
                     if not self.keeps(pair[1])}.values())

    def _check_apart(self, groups: Sequence[Sequence[Named]]) -> None:
        group_of = self._arrangement.turns[0]
        # Those that left the groups are not stepped.
        named = [pair for place, pair in enumerate(self._places.named)
                 if place >= len(group_of) or group_of[place] >= 0]
        named += self._new_in(groups)
        self._compiled.check_apart(locals_of(p for _, p in named),
                                   lambda: [name for name, _ in named])

    def _add(self, named: Sequence[Named]) -> None:
        if not named:
            return
        before = self._places
        self._places = before.extended(named)
        try:
            if before:
                self._extend(named, before)
            else:
                self._open()
        except BaseException:
            self._places = before
            raise

    def _extend(self, named: Sequence[Named], before: Places) -> None:
        try:
            self._compiled.add([parameter for _, parameter in named],
                               [name for name, _ in named])
        except MemoryError:
            if not self.settings.budget.may_grow(self.stats()['memory_bytes']):
                raise
            after, self._places = self._places, before
            self._make_anew(after)

    def _fill(self, states: Sequence[tuple[torch.Tensor, State]],
              done_with: Callable[[State], None] | None = None) -> None:
        if not self._places:
            return
        self.changes += 1
        self._unfinished_turn = None
        try:
            transfer.replace(self._compiled, len(self._places),
                             [(self._places.of(parameter), state)
                              for parameter, state in states], done_with)
        except BaseException:
            self._compiled.reset()
            raise

    def _open(self) -> None:
        """Makes the compiled optimizer for all parameters, without state."""
        if not self._places:
            return
        try:
            self._compiled.open(self._places.parameters, self._places.names,
                                self.settings.for_library(self.state_bytes))
        except MemoryError as error:
            if 'below the minimum' in str(error):
                given = self.settings.budget.given
                raise ValueError(
                    f'{error} (memory_budget={given!r})') from None
            raise

    def _make_anew(self, places: Places) -> None:
        """All state to a compiled optimizer of these places, which are some of
        the old ones or have some more behind them. If that cannot be made and
        filled, the old one stays."""
        if self.settings.has_exclusive_path:
            self._move_through_memory(places)
        else:
            self._move_beside(places)

    def _move_beside(self, places: Places) -> None:
        """A range at a time. Both are there meanwhile, each with its memory
        and its room on disk."""
        before, old = self._places, self._compiled
        steps = old.steps()[:len(places)]
        self._compiled, self._places = Compiled(), places
        try:
            self._open()
            if self._places:
                transfer.copy(old, self._compiled, places.parameters, steps)
        except BaseException:
            self._compiled.close()
            self._compiled, self._places = old, before
            raise
        with contextlib.suppress(OSError, RuntimeError):
            old.close()  # nothing is lost with what it could not remove

    def _move_through_memory(self, places: Places) -> None:
        """Where a path is one optimizer's at a time."""
        before = self._places
        stepped = [p for p in self.stepped() if p in places]
        kept = list(zip(stepped, self.copies(stepped)))
        try:
            self._places = places
            self._open()
            self._fill(kept)
        except BaseException:
            self._places = before
            # No state is lost for want of a hint.
            self.settings = dataclasses.replace(self.settings,
                                                machine_profile='')
            self._open()
            self._fill(kept)
            raise

    def _step(self, groups: Groups, scale: float,
              everything: Sequence[torch.Tensor]) -> None:
        """Of the parameters whose state is here. `everything`: of all ranks,
        where the norm of their gradients is asked for."""
        self._adopt(groups)
        if not self._places:
            return
        self.changes += 1
        turns = self._arrangement.turns
        if len(turns) > 1 and self.settings.reads_norm:
            everything = parameters_in(groups)
        known, first = self._unfinished_turn or (turns, 0)
        for turn in range(first if known is turns else 0, len(turns)):
            if turn:
                self._unfinished_turn = turns, turn
            arguments = (self._places.parameters, turns[turn],
                         numbers_of(groups), scale, everything)
            try:
                self._compiled.step(*arguments)
            except ValueError:
                if not self._follow_casts():
                    raise
                self._compiled.step(*arguments)
        self._unfinished_turn = None

    def _follow_casts(self) -> bool:
        """Whether parameters are of another dtype or size than they were when
        they got their places; now they are known so. ValueError: one that has
        state, which is not that of what it is now."""
        cast = self._places.cast()
        group_of = self._arrangement.turns[0]
        if all(p.grad is None or group_of[self._places.of(p)] < 0
               for p, _ in cast):
            return False
        for parameter, what in cast:
            if self.steps_of(parameter):
                raise ValueError(
                    f'terrace: {what}; after `del optimizer.state[parameter]` '
                    'it begins anew, and a new optimizer takes the '
                    'state_dict() of this one')
        if cast:
            self._make_anew(Places(self._places.named))
        return bool(cast)

    def _adopt(self, groups: Groups) -> None:
        """Parameters that have their first gradient."""
        self._arrangement.follow(groups, self._places.by_id)
        new = [(name, parameter) for name, parameter
               in self._arrangement.without_place
               if not self.knows(parameter) and parameter.grad is not None]
        if new:
            used = self._places.used(self._arrangement.turns[0])
            if (len(used) < len(self._places) and self.ranks.alone
                    and not (self.count_stepped() or self.is_unfinished())):
                self._move_through_memory(used)  # others took their place
                self._arrangement.follow(groups, self._places.by_id)
            self.add([new])
            self._arrangement.follow(groups, self._places.by_id)

    def _places_of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        places = map(self._places.of, tensors)
        return [-1 if place is None else place for place in places]
