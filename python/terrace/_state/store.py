"""The state of parameters, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from terrace._base.groups import Groups, Named, numbers_of, parameters_in
from terrace._base.local_shard import locals_of
from terrace._ranks.ranks import Ranks
from terrace._state.arrangement import Arrangement
from terrace._state.placed_state import PlacedState, State
from terrace._state.settings import Settings
from terrace._state.sharded_check import check_sharded


class StateStore(PlacedState):
    """Keeps state for the parameters that it was given, in one process, known
    by the tensors themselves: groups may be changed as their users like.

    One thread at a time changes it. Every method raises what is described at
    terrace.AdamW; after an error of add() all is as before.

    Attributes:
        ranks: those that share the state; here it is alone.
        changes: of the state by steps and loads, since it was made.
    """

    def __init__(self, settings: Settings, ranks: Ranks | None = None) -> None:
        super().__init__(settings)
        self.ranks = Ranks(None) if ranks is None else ranks
        self.changes = 0
        self._arrangement = Arrangement()
        # Of a step, where a parameter is in its group several times.
        self._unfinished_turn: tuple[list[torch.Tensor], int] | None = None

    def check_between_steps(self, what: str) -> None:
        """RuntimeError: a step goes on between calls, or failed there."""

    def flush(self) -> None:
        """Waits for updates that go on after step(), and raises what failed."""

    def check_scaler(self) -> None:
        """NotImplementedError: its steps come before a GradScaler."""

    def knows(self, parameter: torch.Tensor) -> bool:
        """Or at another rank."""
        return self.keeps(parameter)

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

    def follow_casts(self) -> None:
        """Before what wants parameters and their state alike. ValueError:
        those of one are not."""
        cast = self._places.cast()
        self._check_without_state(cast)
        if cast:
            self._make_anew(self._places.renewed(p for p, _ in cast))

    def skipped(self) -> bool:
        """The last step: a gradient was not finite."""
        return self.settings.skip_nonfinite and self._compiled.skipped()

    def is_unfinished(self) -> bool:
        """Whether a step failed and is to be repeated."""
        return (self._unfinished_turn is not None
                or self._source.incomplete())

    def replace(self, states: Sequence[tuple[Named, State]],
                done_with: Callable[[State], None] | None = None) -> None:
        """Replaces all state; after an error there is none. `done_with` hears
        of tensors that were taken over."""
        new = [named for named, _ in states if not self.knows(named[1])]
        if new:
            self.add([new])
        cast = [parameter for parameter, _ in self._places.cast()]
        if cast:
            self._compiled.reset()
            self._make_anew(self._places.renewed(cast))
        if self._places:
            self.changes += 1
            self._unfinished_turn = None
        self._fill({self._places.of(parameter): state
                    for (_, parameter), state in states
                    if self.keeps(parameter)}, done_with)

    def edit(self, parameter: torch.Tensor, state: State,
             name_of: Callable[[], str]) -> None:
        """Replaces those arrays that are given of one parameter's state: all of
        one that is_cast()."""
        if not self.knows(parameter):
            self.add([[(name_of(), parameter)]])
        if self.is_cast(parameter):
            self._make_anew(self._places.renewed([parameter]),
                            without=[parameter])
            self._unfinished_turn = None
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
        self._compiled.set_steps(steps, [self._places.of(parameter)
                                         for parameter in given
                                         if self.keeps(parameter)])

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
        return {**self._opened.stats(), **self._carried_stats(),
                'rank': self.ranks.rank, 'ranks': self.ranks.size}

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
                self._make_turn(*arguments)
            except ValueError:
                if not self._follow_casts(turns[turn].tolist()):
                    raise
                self._make_turn(*arguments)
        self._unfinished_turn = None

    def _make_turn(self, parameters: Sequence[torch.Tensor],
                   group_of: torch.Tensor, numbers: Sequence[float],
                   scale: float, everything: Sequence[torch.Tensor]) -> None:
        self._compiled.step(parameters, group_of, numbers, scale, everything)

    def _follow_casts(self, group_of: Sequence[int]) -> bool:
        """Whether parameters that are to be stepped are of another dtype or
        shape than they were when they got their places; now they are known so.
        ValueError: one that has state."""
        cast = self._places.cast()
        stepped = [(parameter, what) for parameter, what in cast
                   if parameter.grad is not None
                   and group_of[self._places.of(parameter)] >= 0]
        self._check_without_state(stepped)
        if stepped:
            self._make_anew(self._places.renewed(
                p for p, _ in cast if not self.has_state(p)))
        return bool(stepped)

    def _check_without_state(self, cast: Sequence[tuple[torch.Tensor, str]]
                             ) -> None:
        for parameter, what in cast:
            if self.has_state(parameter):
                raise ValueError(
                    f'terrace: {what}; after `del optimizer.state[parameter]` '
                    'it begins anew, `optimizer.state[parameter] = ...` gives '
                    'it state of its shape, and a new optimizer takes the '
                    'state_dict() of this one')

    def _adopt(self, groups: Groups) -> None:
        """Parameters that have their first gradient."""
        self._arrangement.follow(groups, self._places.by_id)
        new = [(name, parameter) for name, parameter
               in self._arrangement.without_place
               if not self.knows(parameter) and parameter.grad is not None]
        if new:
            used = self._places.used(self._arrangement.turns[0])
            if (len(used) < len(self._places) and self.ranks.alone
                    and not (self.count_with_state() or self.is_unfinished())):
                self._move_through_memory(used)  # others took their place
                self._arrangement.follow(groups, self._places.by_id)
            self.add([new])
            self._arrangement.follow(groups, self._places.by_id)

    def _places_of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        return self._places.numbers(tensors)
