"""State of parameters that several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from terrace._base.arrays import KEYS, keys_of, step_tensor
from terrace._base.errors import RankError
from terrace._base.groups import (Groups, Named, names_of, numbers_of,
                                  parameters_in)
from terrace._ranks import packs
from terrace._ranks.attempt import Attempt
from terrace._ranks.exchange import Exchange, Exchanged
from terrace._ranks.interrupts import uninterrupted
from terrace._ranks.ranks import Ranks
from terrace._ranks.shares import Shares
from terrace._state.copy_file import CopyFile
from terrace._state.share import Share, Shared, State

_OF_ANOTHER_RANK = -2  # as a place in the compiled optimizer

# What a rank says of a step, and any makes true for all.
_SKIP = 1  # nothing is stepped
_NOW = 2  # updates end in step()
_UNTOLD = 4  # it was not told of a failure


class SharedByRanks(Share):
    """This rank keeps the state of its share, and knows all parameters. A rank
    without a share keeps nothing, and nothing of that fails.

    Where the store's stepping is late, each rank's updates go on after step(),
    and an Exchange brings the parameters to the other ranks."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._owners = Shares(ranks.size)
        # The step that another rank did not finish.
        self._attempt: Attempt | None = None
        self._skipped = False
        self._collected: list[tuple[torch.Tensor, State]] | None = None
        self._exchange: Exchange | None = None  # once a late step was made

    def owner(self, parameter: torch.Tensor) -> int | None:
        """The rank that keeps the state of a parameter; None: none does yet."""
        return self._owners.owner(parameter)

    def knows(self, store: Shared, parameter: torch.Tensor) -> bool:
        return self.owner(parameter) is not None

    def check_new(self, store: Shared, groups: Sequence[Sequence[Named]]
                  ) -> None:
        self.settle(store, 'parameters are added')
        unfinished = self._unfinished(store)
        if unfinished:
            raise unfinished
        _check_once(groups)

    def add(self, store: Shared, groups: Sequence[Sequence[Named]]) -> None:
        before = self._owners
        self._collected = None
        try:
            for named in groups:
                self._owners = self._owners.extended(
                    [parameter for _, parameter in named])
            new = store.new_in(groups)
            store.reserve([pair for pair in new
                           if self.owner(pair[1]) == self.ranks.rank])
            store.watch_gradients(new)
        except BaseException:
            self._owners = before
            raise

    def mark(self) -> Any:
        return self._owners

    def back_to(self, mark: Any) -> None:
        self._owners = mark

    def bytes_of(self, kept: int) -> int:
        return self._owners.state_bytes // self.ranks.size

    def step(self, store: Shared, groups: Groups, scale: float, skip: bool,
             error: BaseException | None) -> None:
        """Of each share where its state is, and then every parameter to
        every rank."""
        ranks, phase = self.ranks, 'beginning a step'
        parameters = parameters_in(groups)
        has_gradient = [p.grad is not None for p in parameters]
        with uninterrupted():
            numbers: list[float] = []
            attempt = None
            flags = _SKIP * skip
            try:
                flags |= _NOW * (not store.stepping.is_late(store))
                numbers = numbers_of(groups)
                store.compiled.check_apart(parameters,
                                           lambda: names_of(groups))
                attempt = Attempt(parameters, numbers, scale)
                unfinished = None if skip else self._unfinished(store)
                if unfinished and not self._attempt.is_repeated_by(attempt):
                    error = error or unfinished
            except Exception as caught:
                error = error or caught
            flags = ranks.agree(phase, error, flags,
                                the_options_of_the_groups=numbers,
                                the_loss_scale=scale,
                                which_parameters_have_a_gradient=has_gradient)
            if flags & _SKIP:
                ranks.agree(phase, self._unfinished(store))
                return
            self._collected = None
            self._step_share(store, groups, attempt, not flags & _NOW, [
                Exchanged(name, p, self.owner(p)) for name, p, has
                in zip(names_of(groups), parameters, has_gradient) if has])

    def _step_share(self, store: Shared, groups: Groups, attempt: Attempt,
                    is_late: bool, stepped: list[Exchanged]) -> None:
        everything: Sequence[torch.Tensor] = ()
        if store.settings.reads_norm or attempt.scale != 1:
            everything = attempt.parameters
        error = None
        try:
            if self._attempt is None:
                store.step_turns(groups, attempt.scale, everything, is_late)
            self._attempt = attempt
        except Exception as caught:
            error = caught
        try:
            self._skipped = bool(self.ranks.agree(
                'stepping their shares', error,
                _SKIP * super().skipped(store)))
            if not self._skipped:
                self._send(stepped, is_late)
        except BaseException:
            if self._attempt is not None:
                self._attempt.remember_gradients()
            raise
        self._attempt = None

    def _send(self, stepped: list[Exchanged], is_late: bool) -> None:
        """Each parameter from its owner to all other ranks."""
        phase = 'exchanging the parameters'
        if not is_late:
            packs.broadcast(self.ranks, phase,
                            [(each.parameter, each.owner) for each in stepped])
            return
        if self._exchange is None:
            self._exchange = Exchange(self.ranks)
        self._exchange.begin(phase, stepped)

    def flush(self, store: Shared) -> None:
        """Of a late step that failed, and was told of: all ranks call this, or
        step(), to try it again. A look at the state may have told of it on some
        ranks only: then it is told of on all first."""
        untold: Exception | None = None
        if self._exchange is None or not self._exchange.is_told:
            try:
                self._settle(store.stepping.flush, store)
                return
            except Exception as caught:
                untold = caught
        is_shared = self._exchange is not None and self._exchange.is_told
        if untold is not None and not (is_shared and not self.ranks.lost):
            raise untold
        with uninterrupted():
            self._try_again(store, untold)

    def _try_again(self, store: Shared, untold: Exception | None) -> None:
        """`untold`: what failed, where this rank is told of it only now."""
        try:
            is_anywhere = self.ranks.agree('telling what failed', None,
                                           _UNTOLD * (untold is not None))
        except RankError as error:  # another rank does something else
            raise untold or error from error
        if is_anywhere:
            raise untold or self._exchange.wait()
        error = None
        try:
            store.stepping.flush(store)
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        self.ranks.agree('trying the updates again', error)
        self._exchange.try_again()

    def settle(self, store: Shared, what: str) -> None:
        """The share of a rank that has lost the others, and was told so, may be
        read."""
        if self.ranks.lost and self._exchange and self._exchange.is_told:
            store.stepping.check_between_steps(store, what)
            return
        self._settle(store.stepping.check_between_steps, store, what)

    def _settle(self, wait: Callable[..., None], *arguments: Any) -> None:
        """Waits for the updates of this rank, then for those of others. A
        failure here is told in place of what it does to the exchange."""
        error = None
        try:
            wait(*arguments)
        except Exception as caught:
            error = caught
        if self._exchange is not None:
            failure = self._exchange.wait()
            self._exchange.is_told = failure is not None
            error = error or failure
        if error is not None:
            raise error

    def _failed(self, store: Shared, what: str) -> Exception | None:
        """What keeps the ranks from doing something together: a late step that
        failed, or one that is finished on this rank only."""
        try:
            self.settle(store, what)
        except Exception as error:
            return error
        return self._unfinished(store)

    def skipped(self, store: Shared) -> bool:
        """Whether the last step was skipped, on all ranks alike, also on a
        rank that keeps no state."""
        return self._skipped

    @property
    def is_unfinished(self) -> bool:
        return self._attempt is not None

    def _unfinished(self, store: Shared) -> RuntimeError | None:
        """What is in the way while a step is finished on this rank only."""
        if self._attempt is None or self.ranks.lost:
            return None
        steps = max(store.source.steps(), default=0)
        return RuntimeError(
            f'terrace: {f"step {steps}" if steps else "a step"} is unfinished '
            'on another rank; repeat it with its gradients, or load a '
            'checkpoint')

    def give_up(self) -> None:
        self._collected = self._attempt = None
        if self._exchange is not None:
            self._exchange.give_up()

    def close(self) -> Exception | None:
        if self._exchange is None:
            return None
        failure = self._exchange.wait()
        was_told = self._exchange.is_told
        self._exchange.close()
        return None if was_told else failure

    def _reshaped(self, store: Shared) -> Exception | None:
        """Names a parameter here whose state is of another form: the other
        ranks have tensors of its new form to receive it."""
        try:
            store.check_without_state(store.places.cast())
        except ValueError as error:
            return error
        return None

    def collect(self, store: Shared, to: int, error: Exception | None) -> None:
        super().collect(store, to, None)
        ranks, phase = self.ranks, 'collecting the state'
        found: list[tuple[torch.Tensor, State]] = []
        with uninterrupted():
            ranks.agree(phase, error or self._failed(store, phase)
                        or self._reshaped(store))
            known = self._owners.parameters
            # 0: no state.
            counts = ranks.greatest(phase, [
                1 + store.steps_of(p) if store.has_state(p) else 0
                for p in known])
            sent = [(p, count - 1) for p, count in zip(known, counts)
                    if count and self.owner(p) != to]
            file, error = None, None
            if ranks.rank == to:
                try:
                    file = CopyFile.of(store.settings, [p for p, _ in sent])
                except Exception as caught:
                    error = caught
            ranks.agree(phase, error)
            error = None
            for parameter, count in sent:
                owner = self.owner(parameter)
                if ranks.rank not in (owner, to):
                    continue
                state = _empty_state(parameter, count, file)
                if ranks.rank == to:
                    found.append((parameter, state))
                elif error is None:
                    try:
                        state, = store.copies([parameter])
                    except Exception as caught:
                        error = caught
                self._move(phase, state, owner, to)
            ranks.agree(phase, error)
        self._collected = found if ranks.rank == to else None

    def _move(self, phase: str, state: Mapping[str, torch.Tensor], owner: int,
              to: int) -> None:
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

    def save(self, store: Shared, directory: str,
             tensors: Sequence[torch.Tensor], names: Sequence[str],
             rest: torch.Tensor) -> int:
        """Saves to a directory that all ranks see. Each writes the state of its
        share, rank 0 also the parameters, to files that are not named until
        rank 0 was told of all of them and commits."""
        with uninterrupted():
            try:
                return self._save(store, directory, tensors, names, rest)
            finally:
                store.opened.checkpoint.end_save()

    def _save(self, store: Shared, directory: str,
              tensors: Sequence[torch.Tensor], names: Sequence[str],
              rest: torch.Tensor) -> int:
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

        error = self._failed(store, phase)
        if self._attempt is not None:
            error = RuntimeError(
                'terrace: a step that not all ranks finished cannot be saved')
        ranks.agree(phase, error)
        checkpoint = together(lambda: store.compiled.checkpoint)
        together(checkpoint.begin_save if first else None, directory, rest)
        part = together(checkpoint.write_part, directory, tensors, names,
                        self.places_of(store, tensors), first)
        parts = ranks.gather_at_first(phase, part)
        size = together(checkpoint.commit_save if first else None, parts)
        return ranks.gather_objects(phase, size)[0]

    def load(self, store: Shared, tensors: Sequence[torch.Tensor],
             names: Sequence[str]) -> None:
        """Each rank loads its share of what one process or any number of ranks
        saved."""
        if self._exchange is not None:
            self._exchange.give_up()
        error = None
        try:
            super().load(store, tensors, names)
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        self.ranks.agree('loading', error)
        self._attempt = None
        self._collected = None

    def add_stats(self, stats: dict[str, Any]) -> None:
        super().add_stats(stats)
        sent, received = (0, 0) if self._exchange is None else (
            self._exchange.bytes)
        stats.update(bytes_sent=self.ranks.bytes_sent + sent,
                     bytes_received=self.ranks.bytes_received + received)
        stats['blocked_seconds']['ranks'] = self.ranks.seconds

    def places_of(self, store: Shared, tensors: Sequence[torch.Tensor]
                  ) -> list[int]:
        return [_OF_ANOTHER_RANK if place == -1 and self.knows(store, tensor)
                else place for place, tensor
                in zip(super().places_of(store, tensors), tensors)]


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
