"""Which part of the state this process keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from terrace._base.groups import Groups, Named
from terrace._ranks.ranks import Ranks
from terrace._state.copy_file import CopyFile
from terrace._state.stepping.stepping import Stepped, Stepping

State = Mapping[str, Any]


class Shared(Stepped, Protocol):
    """The store whose state is shared. A share is given it with each call, so
    that neither keeps the other."""

    stepping: Stepping

    def keeps(self, parameter: object) -> bool: ...

    def has_state(self, parameter: object) -> bool: ...

    def steps_of(self, parameter: object) -> int: ...

    def copies(self, parameters: Sequence[torch.Tensor],
               file: CopyFile | None = None
               ) -> list[dict[str, torch.Tensor]]: ...

    def new_in(self, groups: Sequence[Sequence[Named]]) -> list[Named]: ...

    def reserve(self, named: Sequence[Named]) -> None: ...

    def watch_gradients(self, named: Iterable[Named]) -> None: ...

    def check_without_state(self, cast: Sequence[tuple[torch.Tensor, str]]
                            ) -> None: ...


class Share:
    """One process keeps all state. Shares of several ranks derive from this.

    Attributes:
        ranks: those that share the state.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = Ranks(None) if ranks is None else ranks

    def knows(self, store: Shared, parameter: torch.Tensor) -> bool:
        """Whether the parameter has a place, here or at another rank."""
        return store.keeps(parameter)

    def check_new(self, store: Shared, groups: Sequence[Sequence[Named]]
                  ) -> None:
        """Raises what keeps these parameters from being added."""

    def add(self, store: Shared, groups: Sequence[Sequence[Named]]) -> None:
        """Reserves memory and disk for the state that is kept here."""
        store.reserve(store.new_in(groups))

    def mark(self) -> Any:
        """What there is now, for back_to()."""

    def back_to(self, mark: Any) -> None:
        """Without what was added since."""

    def bytes_of(self, kept: int) -> int:
        """The state that a budget is a share of, where so much is kept here."""
        return kept

    def step(self, store: Shared, groups: Groups, scale: float, skip: bool,
             error: BaseException | None) -> None:
        """See StateStore.step."""
        if error is not None:
            raise error
        store.stepping.step(store, groups, scale, skip)

    def skipped(self, store: Shared) -> bool:
        """Whether the last step met a gradient that was not finite."""
        return (store.settings.skip_nonfinite and store.compiled.skipped())

    def flush(self, store: Shared) -> None:
        """Waits for updates that go on after step(), and raises what failed."""
        store.stepping.flush(store)

    def settle(self, store: Shared, what: str) -> None:
        """RuntimeError: a step goes on between calls, or failed there."""
        store.stepping.check_between_steps(store, what)

    def close(self) -> Exception | None:
        """Before the store closes; what failed and was not told."""

    @property
    def is_unfinished(self) -> bool:
        """Whether a step of this share is not finished on all ranks."""
        return False

    def give_up(self) -> None:
        """All state is replaced: no step is unfinished any more."""

    def collect(self, store: Shared, to: int, error: Exception | None) -> None:
        """See StateStore.collect."""
        if error is not None and self.ranks.alone:
            raise error
        if not 0 <= to < self.ranks.size:
            raise ValueError(
                f'terrace: there is no rank {to} of {self.ranks.size}')

    def collected(self) -> list[tuple[torch.Tensor, State]] | None:
        """Other ranks' parameters with their state; None: it was not
        collected, or is of before."""
        return None

    def places_of(self, store: Shared, tensors: Sequence[torch.Tensor]
                  ) -> list[int]:
        """The place of each tensor's state; -1 of a tensor without state, -2
        of one whose state another rank has."""
        return store.places.numbers(tensors)

    def save(self, store: Shared, directory: str,
             tensors: Sequence[torch.Tensor], names: Sequence[str],
             rest: torch.Tensor) -> int:
        """See StateStore.save."""
        return store.compiled.checkpoint.save(
            directory, tensors, names, self.places_of(store, tensors), rest)

    def load(self, store: Shared, tensors: Sequence[torch.Tensor],
             names: Sequence[str]) -> None:
        """See StateStore.load."""
        store.compiled.load(tensors, names, self.places_of(store, tensors))

    def add_stats(self, stats: dict[str, Any]) -> None:
        """Adds to what AdamW.stats answers."""
        stats.update(rank=self.ranks.rank, ranks=self.ranks.size)
