"""A share of an optimizer's parameters: what one rank keeps and steps."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from terrace import _checks, _errors, _ranks, _state
from terrace._compiled import Compiled
from terrace._ranks import Ranks

if TYPE_CHECKING:
    from terrace._optimizer import AdamW

# In a state_dict of one rank: whose it is.
_KEY = 'terrace_share'
_OF_ANOTHER_RANK = -2  # as a position in the compiled optimizer


class Share:
    """torch.classes.terrace.Optimizer for callers who know the parameters of
    all ranks, by their positions; behind it is one of this rank's alone.

    Without any of them nothing is behind it, and nothing fails. What is
    written for another rank's parameter is dropped.
    """

    def __init__(self, native: Any, ranks: Ranks) -> None:
        self._native = native
        self._ranks = ranks
        self._count = 0  # of all ranks
        # What they were made from, to see whether they are still right.
        self._placed: tuple[Any, int, dict[int, int]] = (None, 0, {})
        self._spread: tuple[Any, Any, int, list[int]] = (None, None, 0, [])
        # In a step that another rank did not finish, and what it was.
        self.stepped = False
        self.begun: Any = None
        self._needs_norm = False
        self._skipped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    @property
    def _places(self) -> dict[int, int]:
        """From a position to where it is behind this."""
        owners, count, places = self._placed
        if owners is not self._ranks.owners or count != self._count:
            places = {position: place for place, position
                      in enumerate(self._ranks.own(range(self._count)))}
            self._placed = self._ranks.owners, self._count, places
        return places

    def open(self, parameters: list, names: list[str], groups: list[int],
             options: str) -> _errors.Outcome:
        own = self._ranks.own
        outcome = self._native.open(own(parameters), own(names), own(groups),
                                    options)
        if outcome[0] == 0:
            self._count = len(parameters)
            self.stepped = False
            given = json.loads(options)
            self._needs_norm = bool(given.get('max_gradient_norm')
                                    or given.get('skip_nonfinite'))
        return outcome

    def add(self, parameters: list, names: list[str],
            groups: list[int]) -> _errors.Outcome:
        before, count = self._count, self._count + len(parameters)
        new = [position - before for position
               in self._ranks.own(range(count)) if position >= before]
        outcome = _errors.DONE
        if new:
            outcome = self._native.add(
                *([things[i] for i in new]
                  for things in (parameters, names, groups)))
        if outcome[0] == 0:
            self._count = count
        return outcome

    def unfinished(self) -> RuntimeError | None:
        """What is in the way while a step is finished here only."""
        if not self.stepped or self._ranks.lost:
            return None
        steps = max(self.steps(), default=0)
        return RuntimeError(
            f'terrace: {f"step {steps}" if steps else "a step"} is unfinished '
            'on another rank; repeat it with its gradients, or load a '
            'checkpoint')

    def step(self, parameters: list, numbers: list[float], scale: float,
             _: list) -> _errors.Outcome:
        return self._native.step(
            self._ranks.own(parameters), numbers, scale,
            parameters if self._needs_norm or scale != 1 else [])

    def skipped(self) -> bool:
        """The last step, on all ranks; also on one that keeps no state."""
        return self._skipped

    def tell_skipped(self, error: Exception | None) -> None:
        """The end of every rank's own step."""
        self._skipped = self._ranks.agree('stepping their shares', error,
                                          flag=self._native.skipped())

    def copy_states(self, positions: list[int], parameters: list
                    ) -> tuple[_errors.Outcome, list[torch.Tensor]]:
        places = self._places
        return self._native.copy_states(
            [places[position] for position in positions], parameters)

    def read(self, position: int, *arguments: Any) -> _errors.Outcome:
        return self._native.read(self._places[position], *arguments)

    def write(self, position: int, *arguments: Any) -> _errors.Outcome:
        place = self._places.get(position)
        if place is None:
            return _errors.DONE
        return self._native.write(place, *arguments)

    def steps(self) -> list[int]:
        """By position; 0 of another rank's. Not to be changed."""
        steps = self._native.steps()
        known, owners, count, result = self._spread
        if (known is not steps or owners is not self._ranks.owners
                or count != self._count):
            result = [0] * self._count if steps else []
            for position, place in self._places.items():
                if place < len(steps):
                    result[position] = steps[place]
            self._spread = steps, self._ranks.owners, self._count, result
        return result

    def count_stepped(self) -> int:
        return self._native.count_stepped()

    def set_steps(self, step: int, steps: list[int]) -> _errors.Outcome:
        return self._native.set_steps(step, self._ranks.own(steps))

    def save(self, directory: str, tensors: list, names: list[str],
             positions: list[int], rest: torch.Tensor) -> _errors.Outcome:
        """On all ranks, of a directory that all of them see. Each writes the
        state of its share, rank 0 also the parameters, to files that nobody
        names until rank 0 was told of all of them and commits."""
        with _ranks.uninterrupted():
            try:
                return self._save(directory, tensors, names, positions, rest)
            finally:
                self._native.end_save()

    def _save(self, directory: str, tensors: list, names: list[str],
              positions: list[int], rest: torch.Tensor) -> _errors.Outcome:
        ranks, phase = self._ranks, 'saving'

        def tell(outcome: _errors.Outcome) -> str:
            error = _errors.exception_of(outcome) if outcome[0] else None
            ranks.agree(phase, error)
            return outcome[1]

        ranks.agree(phase, RuntimeError(
            'terrace: a step that not all ranks finished cannot be saved')
            if self.stepped else None)
        first = ranks.rank == 0
        done = _errors.DONE
        tell(self._native.begin_save(directory, rest) if first else done)
        part = tell(self._native.write_part(
            directory, tensors, names, self._places_of(positions), first))
        parts = ranks.gather_at_first(phase, part)
        said = tell(self._native.commit_save(parts) if first else done)
        return _errors.answer(ranks.gather_objects(phase, said)[0])

    def _places_of(self, positions: list[int]) -> list[int]:
        places = {-1: -1, **self._places}
        return [places.get(position, _OF_ANOTHER_RANK)
                for position in positions]

    def fits(self, tensors: list, names: list[str],
             positions: list[int]) -> _errors.Outcome:
        """Of this rank alone."""
        return self._native.fits(tensors, names, self._places_of(positions))

    def load(self, tensors: list, names: list[str],
             positions: list[int]) -> _errors.Outcome:
        """On all ranks, each its share of what one process or any number of
        ranks saved."""
        error = None
        try:
            _errors.check(self._native.load(tensors, names,
                                            self._places_of(positions)))
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        self._ranks.agree('loading', error)
        self.stepped = False
        return _errors.DONE

    def reset(self) -> _errors.Outcome:
        outcome = self._native.reset()
        if outcome[0] == 0:
            self.stepped = False
        return outcome


def of(native: Any, ranks: Ranks) -> Compiled | Share:
    compiled = Compiled(native)
    return compiled if ranks.alone else Share(compiled, ranks)


def step(optimizer: AdamW, skip: bool, scale: float,
         error: BaseException | None) -> None:
    """A step on all ranks: of each share where its state is, and then every
    parameter to everybody. `error`: what failed before it here."""
    ranks, native = optimizer._ranks, optimizer._native
    parameters = optimizer._parameters()
    has_gradient = [p.grad is not None for p in parameters]
    phase = 'beginning a step'
    with _ranks.uninterrupted():
        numbers: list[float] = []
        try:
            numbers = optimizer._numbers()
            _checks.check_apart(optimizer)
            unfinished = None if skip else native.unfinished()
            if unfinished and native.begun != _what(parameters, numbers,
                                                    scale):
                error = error or unfinished
        except Exception as caught:
            error = error or caught
        if ranks.agree(phase, error, flag=skip,
                       the_options_of_the_groups=numbers, the_loss_scale=scale,
                       which_parameters_have_a_gradient=has_gradient):
            ranks.agree(phase, native.unfinished())
            return
        optimizer._collected = None
        error = None
        try:
            if not native.stepped:
                optimizer._step_own(scale)
            native.stepped = True
        except Exception as caught:
            error = caught
        try:
            native.tell_skipped(error)
            ranks.broadcast('exchanging the parameters', [
                (p, owner) for p, owner, has
                in zip(parameters, ranks.owners, has_gradient) if has])
        except BaseException:
            if native.stepped:
                native.begun = _what(parameters, numbers, scale)
            raise
        native.stepped = False


def _what(parameters: list[torch.Tensor], numbers: list[float],
          scale: float) -> tuple:
    """Tells a step from another: its options, and a digest of its gradients.
    Reads all of them; of a step that is to be repeated only."""
    digest = hashlib.sha256()
    for position, parameter in enumerate(parameters):
        if (parameter.grad is None or parameter.grad.layout != torch.strided
                or parameter.grad.numel() == 0):
            continue
        digest.update(f'{position} {parameter.grad.dtype}'.encode())
        # A block at a time in CPU memory.
        for part in parameter.grad.detach().reshape(-1).split(1 << 22):
            digest.update(part.cpu().resolve_neg().view(torch.uint8).numpy())
    return numbers, scale, digest.digest()


def completed(copy: dict[str, Any], ranks: Ranks,
              collected: dict[int, dict[str, Any]] | None) -> dict[str, Any]:
    """A state_dict with what was collected, or with the mark of its rank."""
    if ranks.alone:
        return copy
    if collected is None:
        copy[_KEY] = _mark(ranks)
    else:
        copy['state'] = dict(sorted({**collected, **copy['state']}.items()))
    return copy


def _mark(ranks: Ranks) -> dict[str, Any]:
    positions = ranks.own(range(len(ranks.owners)))
    return {'rank': ranks.rank, 'ranks': ranks.size,
            'positions': list(positions)}


def check(given: dict[str, Any], ranks: Ranks) -> None:
    """ValueError: a state_dict of one rank's share, and not of this one's."""
    theirs = given.get(_KEY)
    if theirs and (ranks.alone or theirs != _mark(ranks)):
        raise ValueError(
            f'terrace: this is the state of the share of rank '
            f'{theirs["rank"]} of {theirs["ranks"]}, neither of all parameters '
            f'nor of the share of rank {ranks.rank} of {ranks.size}; '
            'consolidate_state_dict() before state_dict() makes a whole one')


def collect(optimizer: AdamW, to: int) -> dict[int, dict[str, Any]] | None:
    """At rank `to`: the state of the other ranks' parameters, by position. A
    rank that cannot read sends on, and says so when all are done."""
    ranks, phase = optimizer._ranks, 'collecting the state'
    if not 0 <= to < ranks.size:
        raise ValueError(f'terrace: there is no rank {to} of {ranks.size}')
    if ranks.alone:
        return None
    collected: dict[int, dict[str, Any]] = {}
    error = None
    with _ranks.uninterrupted():
        ranks.agree(phase, optimizer._native.unfinished())
        own = optimizer._steps() or [0] * len(ranks.owners)
        counts = ranks.greatest(phase, own)
        for position, parameter in enumerate(optimizer._parameters()):
            owner = ranks.owners[position]
            if (counts[position] == 0 or owner == to
                    or ranks.rank not in (owner, to)):
                continue
            state = _empty_state(parameter, counts[position])
            if ranks.rank == to:
                collected[position] = state
            elif error is None:
                try:
                    state = optimizer.state[parameter]
                except Exception as caught:
                    error = caught
            _exchange(ranks, phase, [state[key] for key in _state.KEYS
                                     if key in state], owner, to)
        ranks.agree(phase, error)
    return collected if ranks.rank == to else None


def _exchange(ranks: Ranks, phase: str, arrays: list[torch.Tensor],
              owner: int, to: int) -> None:
    with ranks.watched(phase):
        for array in arrays:
            if array.numel() == 0:
                continue
            if ranks.rank == to:
                ranks.receive(array, owner)
            else:
                ranks.send(array, to)


def _empty_state(parameter: torch.Tensor,
                 steps: int) -> dict[str, torch.Tensor]:
    return {'step': torch.tensor(float(steps), device='cpu'),
            **{key: array for key, array
               in zip(_state.KEYS, _arrays(parameter))
               if key in _state.keys_of(parameter)}}


def _arrays(parameter: torch.Tensor) -> list[torch.Tensor]:
    """For all kinds of its state; without elements where it has none."""
    kinds = _state.keys_of(parameter)
    return [torch.empty(parameter.shape if key in kinds else 0,
                        dtype=torch.float32, device='cpu')
            for key in _state.KEYS]
