"""State of parameters that steps change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from terrace._base.groups import Groups, Named, numbers_of, parameters_in
from terrace._base.local_shard import locals_of
from terrace._state.arrangement import Arrangement
from terrace._state.placed_state import PlacedState
from terrace._state.settings import Settings
from terrace._state.share import Share
from terrace._state.stepping.stepping import Stepping, Turn


class SteppedState(PlacedState):
    """Steps the parameters whose state is kept here, in groups that may be
    changed as their users like.

    Attributes:
        share: which part of the state is kept here.
        stepping: when a step updates the parameters.
        arrangement: the group of each parameter.
        changes: of the state by steps and loads, since it was made.
    """

    def __init__(self, settings: Settings, share: Share, stepping: Stepping
                 ) -> None:
        super().__init__(settings, stepping.frees_gradients)
        self.share = share
        self.stepping = stepping
        self.arrangement = Arrangement()
        self.changes = 0
        # Of a step, where a parameter is in its group several times.
        self._unfinished_turn: tuple[list[torch.Tensor], int] | None = None

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter has a place, here or at another rank."""
        return self.share.knows(self, parameter)

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        """Reserves memory and disk for the state of more parameters."""
        raise NotImplementedError

    def is_unfinished(self) -> bool:
        """Whether a step failed and is to be repeated."""
        return (self.share.is_unfinished or self._unfinished_turn is not None
                or self.source.incomplete())

    def follow_casts(self) -> None:
        """Before what wants parameters and their state alike. ValueError:
        those of one are not."""
        cast = self.places.cast()
        self.check_without_state(cast)
        if cast:
            self.make_anew(self.places.renewed(p for p, _ in cast))

    # What the kinds of a store, its share and its stepping use.

    def new_in(self, groups: Sequence[Sequence[Named]]) -> list[Named]:
        """Those that have no place here, each once."""
        return list({id(pair[1]): pair for named in groups for pair in named
                     if not self.keeps(pair[1])}.values())

    def check_apart(self, groups: Sequence[Sequence[Named]]) -> None:
        """ValueError: two of these and of those that are stepped share
        memory."""
        group_of = self.arrangement.turns[0]
        # Those that left the groups are not stepped.
        named = [pair for place, pair in enumerate(self.places.named)
                 if place >= len(group_of) or group_of[place] >= 0]
        named += self.new_in(groups)
        self.compiled.check_apart(locals_of(p for _, p in named),
                                  lambda: [name for name, _ in named])

    def check_without_state(self, cast: Sequence[tuple[torch.Tensor, str]]
                            ) -> None:
        """ValueError: one of these, which have another form by now, has
        state."""
        for parameter, what in cast:
            if self.has_state(parameter):
                raise ValueError(
                    f'terrace: {what}; after `del optimizer.state[parameter]` '
                    'it begins anew, `optimizer.state[parameter] = ...` gives '
                    'it state of its shape, and a new optimizer takes the '
                    'state_dict() of this one')

    def step_turns(self, groups: Groups, scale: float,
                   everything: Sequence[torch.Tensor],
                   may_be_late: bool = True) -> None:
        """Steps the parameters whose state is here. `everything`: those of all
        ranks, where the norm of their gradients is asked for. Unless it
        `may_be_late` all updates end here."""
        self._adopt(groups)
        if not self.places:
            return
        self.changes += 1
        turns = self.arrangement.turns
        if len(turns) > 1 and self.settings.reads_norm:
            everything = parameters_in(groups)
        known, first = self._unfinished_turn or (turns, 0)
        for index in range(first if known is turns else 0, len(turns)):
            if index:
                self._unfinished_turn = turns, index
            turn = Turn(self.places.parameters, turns[index],
                        numbers_of(groups), scale, everything,
                        may_be_late)
            try:
                self.stepping.make_turn(self, turn)
            except ValueError:
                if not self._follow_casts(turns[index].tolist()):
                    raise
                self.stepping.make_turn(self, turn)
        self._unfinished_turn = None

    def _follow_casts(self, group_of: Sequence[int]) -> bool:
        """Whether parameters that are to be stepped are of another dtype or
        shape than they were when they got their places; now they are known so.
        ValueError: one that has state."""
        cast = self.places.cast()
        stepped = [(parameter, what) for parameter, what in cast
                   if parameter.grad is not None
                   and group_of[self.places.of(parameter)] >= 0]
        self.check_without_state(stepped)
        if stepped:
            self.make_anew(self.places.renewed(
                p for p, _ in cast if not self.has_state(p)))
        return bool(stepped)

    def _adopt(self, groups: Groups) -> None:
        """Gives a place to parameters that have their first gradient."""
        self.arrangement.follow(groups, self.places.by_id)
        new = [(name, parameter) for name, parameter
               in self.arrangement.without_place
               if not self.knows(parameter) and parameter.grad is not None]
        if new:
            used = self.places.used(self.arrangement.turns[0])
            if (len(used) < len(self.places) and self.share.ranks.alone
                    and not (self.count_with_state() or self.is_unfinished())):
                self._move_through_memory(used)  # others took their place
                self.arrangement.follow(groups, self.places.by_id)
            self.add([new])
            self.arrangement.follow(groups, self.places.by_id)
