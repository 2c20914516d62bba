"""The state of parameters, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from terrace._base.groups import Groups, Named
from terrace._ranks.ranks import Ranks
from terrace._state.placed_state import State
from terrace._state.settings import Settings
from terrace._state.share import Share
from terrace._state.sharded_check import check_sharded
from terrace._state.stepped_state import SteppedState
from terrace._state.stepping.stepping import Stepping


class StateStore(SteppedState):
    """Keeps state for the parameters that it was given, known by the tensors
    themselves. A share says which part of it is kept in this process, and a
    stepping when a step updates the parameters.

    One thread at a time changes it. Every method raises what is described at
    terrace.AdamW; after an error of add() all is as before.

    Of several ranks the methods add(), step(), collect(), save() and load() are
    called by every rank; of add() each tells the others itself whether it
    failed.
    """

    def __init__(self, settings: Settings, share: Share | None = None,
                 stepping: Stepping | None = None) -> None:
        super().__init__(settings, share or Share(), stepping or Stepping())
        self.stepping.attach(self)

    @property
    def ranks(self) -> Ranks:
        """Those that share the state."""
        return self.share.ranks

    @property
    def state_bytes(self) -> int:
        """Of ranks that share the state each gets as much."""
        return self.share.bytes_of(self.places.state_bytes)

    def check_between_steps(self, what: str) -> None:
        """RuntimeError: a step goes on between calls, or failed there."""
        self.share.settle(self, what)

    def flush(self) -> None:
        """Waits for updates that go on after step(), and raises what failed."""
        self.share.flush(self)

    def check_scaler(self) -> None:
        """NotImplementedError: its steps come before a GradScaler."""
        self.stepping.check_scaler(self)

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        """Reserves memory and disk for the state of more parameters. Where
        that needs more memory than is reserved, it is reserved anew and the
        state copied there."""
        self.stepping.check_new(groups)
        self.share.check_new(self, groups)
        check_sharded(groups, self.settings, self.ranks)
        self.check_apart(groups)
        self.share.add(self, groups)
        self.stepping.follow(self.places.parameters)

    def mark(self) -> Any:
        """What there is now, for back_to()."""
        return len(self.places), self.share.mark()

    def back_to(self, mark: Any) -> None:
        """Without what was added since."""
        count, shared = mark
        self.share.back_to(shared)
        if count < len(self.places):
            self.make_anew(self.places.first(count))

    def step(self, groups: Groups, scale: float, skip: bool = False,
             error: BaseException | None = None) -> None:
        """Of all parameters of the groups that have a gradient, which is
        divided by `scale`. `error`: what failed before it, to be raised where
        all ranks have heard of it."""
        self.share.step(self, groups, scale, skip, error)

    def skipped(self) -> bool:
        """Whether the last step met a gradient that was not finite."""
        return self.share.skipped(self)

    def replace(self, states: Sequence[tuple[Named, State]],
                done_with: Callable[[State], None] | None = None) -> None:
        """Replaces all state; after an error there is none. `done_with` hears
        of tensors that were taken over."""
        self.stepping.check_begun('state is loaded')
        self.share.give_up()
        new = [named for named, _ in states if not self.knows(named[1])]
        if new:
            self.add([new])
        cast = [parameter for parameter, _ in self.places.cast()]
        if cast:
            self.compiled.reset()
            self.make_anew(self.places.renewed(cast))
        if self.places:
            self.changes += 1
            self._unfinished_turn = None
        self.fill({self.places.of(parameter): state
                    for (_, parameter), state in states
                    if self.keeps(parameter)}, done_with)

    def edit(self, parameter: torch.Tensor, state: State,
             name_of: Callable[[], str]) -> None:
        """Replaces those arrays that are given of one parameter's state: all of
        one that is_cast()."""
        if not self.knows(parameter):
            self.add([[(name_of(), parameter)]])
        if self.is_cast(parameter):
            self.make_anew(self.places.renewed([parameter]),
                            without=[parameter])
            self._unfinished_turn = None
        place = self.places.of(parameter)
        if place is not None:  # else another rank's
            self.compiled.edit(place, state)

    def set_steps(self, given: Mapping[torch.Tensor, int]) -> None:
        """In which these had a gradient."""
        if not (given and self.places):
            return
        steps = list(self.compiled.steps())
        for parameter, step in given.items():
            place = self.places.of(parameter)
            if place is not None:
                steps[place] = step
        self.compiled.set_steps(steps, [self.places.of(parameter)
                                         for parameter in given
                                         if self.keeps(parameter)])

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Their next step is their first."""
        self._unfinished_turn = None
        if parameters:
            self.compiled.forget([self.places.of(p) for p in parameters])

    def collect(self, to: int, error: Exception | None = None) -> None:
        """The state of all ranks at one of them, for collected(). `error`:
        what failed before it, as for step()."""
        self.share.collect(self, to, error)

    def collected(self) -> list[tuple[torch.Tensor, State]] | None:
        """Other ranks' parameters with their state; None: it was not
        collected, or is of before."""
        return self.share.collected()

    def save(self, directory: str, tensors: Sequence[torch.Tensor],
             names: Sequence[str], rest: torch.Tensor) -> int:
        """Writes a checkpoint of these tensors and all state; its bytes."""
        self.stepping.check_begun('a checkpoint is saved')
        return self.share.save(self, directory, tensors, names, rest)

    def begin_load(self, directory: str) -> torch.Tensor:
        """Opens a checkpoint, until end_load(); the `rest` of save()."""
        return self.compiled.checkpoint.begin_load(directory)

    def check_fits(self, tensors: Sequence[torch.Tensor],
                   names: Sequence[str]) -> None:
        """Whether load() can take it; of several ranks here alone."""
        self.compiled.checkpoint.check_fits(
            tensors, names, self.share.places_of(self, tensors))

    def load(self, tensors: Sequence[torch.Tensor],
             names: Sequence[str]) -> None:
        """Fills tensors and state from the checkpoint that was opened."""
        self.stepping.check_begun('a checkpoint is loaded')
        self.changes += 1
        self._unfinished_turn = None
        self.share.load(self, tensors, names)

    def end_load(self) -> None:
        self.compiled.checkpoint.end_load()

    def stats(self) -> dict[str, Any]:
        """See AdamW.stats."""
        stats = {**self.opened.stats(), **self._carried_stats()}
        self.share.add_stats(stats)
        self.stepping.tell(self)
        return stats

    def close(self) -> None:
        """Gives memory and disk back."""
        self.stepping.close(self)
        failure = self.share.close()
        super().close()
        if failure is not None:
            raise failure
