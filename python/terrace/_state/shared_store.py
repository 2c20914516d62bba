"""The state of parameters that several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from terrace._base.arrays import KEYS, keys_of, step_tensor
from terrace._base.groups import (Groups, Named, names_of, numbers_of,
                                  parameters_in)
from terrace._ranks import packs
from terrace._ranks.attempt import Attempt
from terrace._ranks.interrupts import uninterrupted
from terrace._ranks.ranks import Ranks
from terrace._ranks.shares import Shares
from terrace._state.copy_file import CopyFile
from terrace._state.settings import Settings
from terrace._state.sharded_check import check_sharded
from terrace._state.store import State, StateStore

_OF_ANOTHER_RANK = -2  # as a place in the compiled optimizer


class SharedStore(StateStore):
    """Keeps this rank's share of the state, and knows all parameters. A rank
    without a share keeps nothing, and nothing of that fails.

    Of the methods add(), step(), collect(), save() and load() are called by
    every rank; of add() each tells the others itself whether it failed.
    """

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        super().__init__(settings, ranks)
        self._shares = Shares(ranks.size)
        # That another rank did not finish.
        self._attempt: Attempt | None = None
        self._skipped = False
        self._collected: list[tuple[torch.Tensor, State]] | None = None

    def knows(self, parameter: torch.Tensor) -> bool:
        return self._shares.owner(parameter) is not None

    def add(self, groups: Sequence[Sequence[Named]]) -> None:
        unfinished = self._unfinished()
        if unfinished:
            raise unfinished
        check_sharded(groups, self.settings, self.ranks)
        _check_once(groups)
        self._check_apart(groups)
        before = self._shares
        self._collected = None
        try:
            for named in groups:
                self._shares = self._shares.extended(
                    [parameter for _, parameter in named])
            self._add([pair for pair in self._new_in(groups)
                       if self._is_own(pair[1])])
        except BaseException:
            self._shares = before
            raise

    def mark(self) -> Any:
        return self._shares, super().mark()

    def back_to(self, mark: Any) -> None:
        self._shares, own = mark
        super().back_to(own)

    @property
    def state_bytes(self) -> int:
        """Of ranks that share the state each gets as much."""
        return self._shares.state_bytes // self.ranks.size

    def step(self, groups: Groups, scale: float, skip: bool = False,
             error: BaseException | None = None) -> None:
        """Of each share where its state is, and then every parameter to
        every rank."""
        ranks, phase = self.ranks, 'beginning a step'
        parameters = parameters_in(groups)
        has_gradient = [p.grad is not None for p in parameters]
        with uninterrupted():
            numbers: list[float] = []
            attempt = None
            try:
                numbers = numbers_of(groups)
                self._compiled.check_apart(parameters,
                                           lambda: names_of(groups))
                attempt = Attempt(parameters, numbers, scale)
                unfinished = None if skip else self._unfinished()
                if unfinished and not self._attempt.is_repeated_by(attempt):
                    error = error or unfinished
            except Exception as caught:
                error = error or caught
            if ranks.agree(phase, error, flag=skip,
                           the_options_of_the_groups=numbers,
                           the_loss_scale=scale,
                           which_parameters_have_a_gradient=has_gradient):
                ranks.agree(phase, self._unfinished())
                return
            self._collected = None
            self._step_share(groups, attempt, [
                p for p, has in zip(parameters, has_gradient) if has])

    def _step_share(self, groups: Groups, attempt: Attempt,
                    stepped: list[torch.Tensor]) -> None:
        everything: Sequence[torch.Tensor] = ()
        if self.settings.reads_norm or attempt.scale != 1:
            everything = attempt.parameters
        error = None
        try:
            if self._attempt is None:
                self._step(groups, attempt.scale, everything)
            self._attempt = attempt
        except Exception as caught:
            error = caught
        try:
            self._skipped = self.ranks.agree(
                'stepping their shares', error, flag=super().skipped())
            packs.broadcast(self.ranks, 'exchanging the parameters',
                            [(p, self._shares.owner(p)) for p in stepped])
        except BaseException:
            if self._attempt is not None:
                self._attempt.remember_gradients()
            raise
        self._attempt = None

    def skipped(self) -> bool:
        """The last step, on all ranks; also on one that keeps no state."""
        return self._skipped

    def is_unfinished(self) -> bool:
        return self._attempt is not None or super().is_unfinished()

    def _unfinished(self) -> RuntimeError | None:
        """What is in the way while a step is finished here only."""
        if self._attempt is None or self.ranks.lost:
            return None
        steps = max(self._source.steps(), default=0)
        return RuntimeError(
            f'terrace: {f"step {steps}" if steps else "a step"} is unfinished '
            'on another rank; repeat it with its gradients, or load a '
            'checkpoint')

    def replace(self, states: Sequence[tuple[Named, State]],
                done_with: Callable[[State], None] | None = None) -> None:
        self._collected = self._attempt = None
        super().replace(states, done_with)

    def _reshaped(self) -> Exception | None:
        """Of a parameter here whose state is of another form: the others have
        tensors of its new one to receive it."""
        try:
            self._check_without_state(self._places.cast())
        except ValueError as error:
            return error
        return None

    def collect(self, to: int, error: Exception | None = None) -> None:
        super().collect(to)
        ranks, phase = self.ranks, 'collecting the state'
        found: list[tuple[torch.Tensor, State]] = []
        with uninterrupted():
            ranks.agree(phase, error or self._reshaped() or self._unfinished())
            known = self._shares.parameters
            # 0: no state.
            counts = ranks.greatest(phase, [
                1 + self.steps_of(p) if self.has_state(p) else 0
                for p in known])
            sent = [(p, count - 1) for p, count in zip(known, counts)
                    if count and self._shares.owner(p) != to]
            file, error = None, None
            if ranks.rank == to:
                try:
                    file = CopyFile.of(self.settings, [p for p, _ in sent])
                except Exception as caught:
                    error = caught
            ranks.agree(phase, error)
            error = None
            for parameter, count in sent:
                owner = self._shares.owner(parameter)
                if ranks.rank not in (owner, to):
                    continue
                state = _empty_state(parameter, count, file)
                if ranks.rank == to:
                    found.append((parameter, state))
                elif error is None:
                    try:
                        state, = self.copies([parameter])
                    except Exception as caught:
                        error = caught
                self._exchange(phase, state, owner, to)
            ranks.agree(phase, error)
        self._collected = found if ranks.rank == to else None

    def _exchange(self, phase: str, state: Mapping[str, torch.Tensor],
                  owner: int, to: int) -> None:
        with self.ranks.watched(phase):
            for array in (state[key] for key in KEYS if key in state):
                if array.numel() == 0:
                    continue
                if self.ranks.rank == to:
                    self.ranks.receive(array, owner)
                else:
                    self.ranks.send(array, to)

    def collected(self) -> list[tuple[torch.Tensor, State]] | None:
        return self._collected

    def save(self, directory: str, tensors: Sequence[torch.Tensor],
             names: Sequence[str], rest: torch.Tensor) -> int:
        """To a directory that all ranks see. Each writes the state of its
        share, rank 0 also the parameters, to files that are not named until
        rank 0 was told of all of them and commits."""
        with uninterrupted():
            try:
                return self._save(directory, tensors, names, rest)
            finally:
                self._opened.end_save()

    def _save(self, directory: str, tensors: Sequence[torch.Tensor],
              names: Sequence[str], rest: torch.Tensor) -> int:
        ranks, phase = self.ranks, 'saving'
        first = ranks.rank == 0

        def together(call: Callable[..., Any] | None, *arguments: Any) -> Any:
            said, error = None, None
            try:
                said = call(*arguments) if call else None
            except Exception as caught:  # the other ranks are to hear of it
                error = caught
            ranks.agree(phase, error)
            return said

        ranks.agree(phase, RuntimeError(
            'terrace: a step that not all ranks finished cannot be saved')
            if self._attempt is not None else None)
        compiled = together(lambda: self._compiled)
        together(compiled.begin_save if first else None, directory, rest)
        part = together(compiled.write_part, directory, tensors, names,
                        self._places_of(tensors), first)
        parts = ranks.gather_at_first(phase, part)
        size = together(compiled.commit_save if first else None, parts)
        return ranks.gather_objects(phase, size)[0]

    def load(self, tensors: Sequence[torch.Tensor],
             names: Sequence[str]) -> None:
        """Each rank its share of what one process or any number of ranks
        saved."""
        error = None
        try:
            super().load(tensors, names)
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        self.ranks.agree('loading', error)
        self._attempt = None
        self._collected = None

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        stats.update(bytes_sent=self.ranks.bytes_sent,
                     bytes_received=self.ranks.bytes_received)
        stats['blocked_seconds']['ranks'] = self.ranks.seconds
        return stats

    def _is_own(self, parameter: torch.Tensor) -> bool:
        return self._shares.owner(parameter) == self.ranks.rank

    def _places_of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        return [_OF_ANOTHER_RANK if place == -1 and self.knows(tensor)
                else place
                for place, tensor in zip(super()._places_of(tensors), tensors)]


def _check_once(groups: Sequence[Sequence[Named]]) -> None:
    for named in groups:
        if len({id(parameter) for _, parameter in named}) < len(named):
            raise ValueError('terrace: a parameter is in its group twice; one '
                             'process can step it so, ranks that share it '
                             'cannot')


def _empty_state(parameter: torch.Tensor, steps: int,
                 file: CopyFile | None) -> dict[str, torch.Tensor]:
    return {'step': step_tensor(steps),
            **{key: (torch.empty(parameter.shape, dtype=torch.float32,
                                 device='cpu') if file is None
                     else file.empty(parameter.shape))
               for key in keys_of(parameter)}}
