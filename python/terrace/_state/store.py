"""The state of parameters, wherever it lies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from terrace._base.arrays import state_bytes
from terrace._base.groups import Groups, Named, numbers_of, parameters_in
from terrace._ranks.ranks import Ranks
from terrace._state import transfer
from terrace._state.arrangement import Arrangement
from terrace._state.compiled import Compiled
from terrace._state.settings import Settings

# Of state that is copied in one call.
_COPIED_BYTES = 1 << 30

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
        # By place in the compiled optimizer; kept alive, so that an id means
        # one of them.
        self._parameters: list[torch.Tensor] = []
        self._names: list[str] = []
        self._places: dict[int, int] = {}
        self._arrangement = Arrangement()
        self._readers = 0
        self._turn = 0  # of a step

    def keeps(self, parameter: object) -> bool:
        """Whether memory or disk is reserved for its state here."""
        return id(parameter) in self._places

    def knows(self, parameter: torch.Tensor) -> bool:
        """Or at another rank."""
        return self.keeps(parameter)

    @property
    def holds_state(self) -> bool:
        """Whether there is anything to keep: parameters may have no
        elements."""
        return any(p.numel() for p in self._parameters)

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        """Reserves memory and disk for the state of more parameters. Where
        that needs more memory than is reserved, it is reserved anew and the
        state copied there."""
        self._check_apart(groups)
        self._add(self._new_in(groups))

    def mark(self) -> Any:
        """What there is now, for back_to()."""
        return len(self._parameters)

    def back_to(self, mark: Any) -> None:
        """Without what was added since."""
        if mark < len(self._parameters):
            self._make_anew(self._parameters[:mark], self._names[:mark])

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
        return self._compiled.incomplete()

    def steps_of(self, parameter: object) -> int:
        """In which it had a gradient; 0: there is no state of it here."""
        place = self._places.get(id(parameter))
        if place is None:
            return 0
        steps = self._compiled.steps()
        return steps[place] if place < len(steps) else 0

    def stepped(self) -> list[torch.Tensor]:
        """Those whose state is here."""
        return [parameter for parameter, step
                in zip(self._parameters, self._compiled.steps()) if step]

    def count_stepped(self) -> int:
        return self._compiled.count_stepped()

    def copies(self, parameters: Sequence[torch.Tensor]
               ) -> list[dict[str, torch.Tensor]]:
        """All the state of parameters that were stepped: in one call, or in
        one for each GiB, between which Ctrl-C is heard."""
        result: list[dict[str, torch.Tensor]] = []
        first = 0
        while first < len(parameters):
            end, size = first, 0
            while end < len(parameters) and size < _COPIED_BYTES:
                size += state_bytes(parameters[end])
                end += 1
            part = parameters[first:end]
            result += self._compiled.copies(
                [self._places[id(parameter)] for parameter in part], part)
            first = end
        return result

    def read(self, parameter: torch.Tensor, offset: int,
             arrays: Mapping[str, torch.Tensor]) -> None:
        """Fills float32 tensors of one length, by key, with the elements from
        `offset` on."""
        transfer.read(self._compiled, self._places[id(parameter)], parameter,
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

    def edit(self, named: Named, state: State) -> None:
        """Replaces those arrays, and the step, that are given of one
        parameter's state."""
        if not self.knows(named[1]):
            self.add([[named]])
        place = self._places.get(id(named[1]))
        if place is None or not self.holds_state:
            return  # another rank's
        self._compiled.edit(place, state)
        if 'step' in state:
            steps = list(self._compiled.steps())
            steps[place] = int(state['step'])
            self._compiled.set_steps(steps)

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Their next step is their first."""
        if parameters:
            self._compiled.forget([self._places[id(p)] for p in parameters])

    def collect(self, to: int) -> None:
        """The state of all ranks at one of them, for collected()."""
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
        return sum(map(state_bytes, self._parameters))

    def close(self) -> None:
        self._compiled.close()

    # Below: for this class and its kinds.

    def _new_in(self, groups: Sequence[Sequence[Named]]) -> list[Named]:
        """Those that have no place here, each once."""
        return list({id(pair[1]): pair for named in groups for pair in named
                     if not self.keeps(pair[1])}.values())

    def _check_apart(self, groups: Sequence[Sequence[Named]]) -> None:
        named = [*zip(self._names, self._parameters), *self._new_in(groups)]
        self._compiled.check_apart([parameter for _, parameter in named],
                                   lambda: [name for name, _ in named])

    def _add(self, named: Sequence[Named]) -> None:
        if not named:
            return
        parameters = [parameter for _, parameter in named]
        names = [name for name, _ in named]
        held = self.holds_state
        before = self._parameters, self._names
        self._keep([*self._parameters, *parameters], [*self._names, *names])
        try:
            if not held:
                self._open()
            else:
                self._extend(parameters, names, before)
        except BaseException:
            self._keep(*before)
            raise

    def _extend(self, parameters: list[torch.Tensor], names: list[str],
                before: tuple[list[torch.Tensor], list[str]]) -> None:
        try:
            self._compiled.add(parameters, names)
        except MemoryError:
            if not self.settings.budget.may_grow(self.stats()['memory_bytes']):
                raise
            after = self._parameters, self._names
            self._keep(*before)
            self._make_anew(*after)

    def _fill(self, states: Sequence[tuple[torch.Tensor, State]],
              done_with: Callable[[State], None] | None = None) -> None:
        if not self.holds_state:
            return
        self.changes += 1
        try:
            transfer.replace(self._compiled, len(self._parameters),
                             [(self._places[id(parameter)], state)
                              for parameter, state in states], done_with)
        except BaseException:
            self._compiled.reset()
            raise

    def _keep(self, parameters: list[torch.Tensor], names: list[str]) -> None:
        self._parameters, self._names = parameters, names
        self._places = {id(p): place for place, p in enumerate(parameters)}

    def _open(self) -> None:
        """Makes the compiled optimizer for all parameters, without state."""
        if not self.holds_state:
            return
        try:
            self._compiled.open(self._parameters, self._names,
                                self.settings.for_library(self.state_bytes))
        except MemoryError as error:
            if 'below the minimum' in str(error):
                given = self.settings.budget.given
                raise ValueError(
                    f'{error} (memory_budget={given!r})') from None
            raise

    def _make_anew(self, parameters: list[torch.Tensor],
                   names: list[str]) -> None:
        """All state to a compiled optimizer of these parameters, which are
        some of the old ones or have some more behind them. If that cannot be
        made and filled, the old one stays."""
        if self.settings.has_exclusive_path:
            self._move_through_memory(parameters, names)
        else:
            self._move_beside(parameters, names)

    def _move_beside(self, parameters: list[torch.Tensor],
                     names: list[str]) -> None:
        """A range at a time. Both are there meanwhile, each with its memory
        and its room on disk."""
        before, old = (self._parameters, self._names), self._compiled
        steps = old.steps()[:len(parameters)]
        self._compiled = Compiled()
        self._keep(parameters, names)
        try:
            self._open()
            if self.holds_state:
                transfer.copy(old, self._compiled, parameters, steps)
        except BaseException:
            self._compiled.close()
            self._compiled = old
            self._keep(*before)
            raise
        with contextlib.suppress(OSError, RuntimeError):
            old.close()  # nothing is lost with what it could not remove

    def _move_through_memory(self, parameters: list[torch.Tensor],
                             names: list[str]) -> None:
        """Where a path is one optimizer's at a time."""
        before = self._parameters, self._names
        stepped = self.stepped()
        kept = list(zip(stepped, self.copies(stepped)))
        try:
            self._keep(parameters, names)
            self._open()
            self._fill(kept)
        except BaseException:
            self._keep(*before)
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
        if not self.holds_state:
            return
        self.changes += 1
        turns = self._arrangement.turns
        if len(turns) > 1 and self.settings.reads_norm:
            everything = parameters_in(groups)
        # From the turn on that is unfinished.
        for self._turn in range(self._turn, len(turns)):
            self._compiled.step(self._parameters, turns[self._turn],
                                numbers_of(groups), scale, everything)
        self._turn = 0

    def _adopt(self, groups: Groups) -> None:
        """Parameters that have their first gradient."""
        self._arrangement.follow(groups, self._places)
        new = [(name, parameter) for name, parameter
               in self._arrangement.without_place
               if not self.knows(parameter) and parameter.grad is not None]
        if new:
            self.add([new])
            self._arrangement.follow(groups, self._places)

    def _places_of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        return [self._places.get(id(tensor), -1) for tensor in tensors]
