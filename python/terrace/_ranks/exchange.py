"""Parameters on their way from the ranks that update them after step()."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from terrace._base import errors, library
from terrace._base.errors import RankError
from terrace._ranks.own_group import OwnGroup
from terrace._ranks.ranks import Ranks


# What a failure says that is tried again on one rank alone.
_THERE = '; optimizer.flush() tries again'


class Exchanged(NamedTuple):
    """A parameter that was stepped, and the rank that updates it."""

    name: str
    parameter: torch.Tensor
    owner: int


class Exchange:
    """A thread of the library brings every parameter of a late step from the
    rank that updates it to all others, in one order on all ranks: that in which
    rank 0 used them after the step before. Its collectives are on a group of
    their own. Operations wait for the parameters that they take, and for the
    end of all before they write one that this rank sends.

    Every rank calls begin() and try_again(). One thread at a time uses it.

    Attributes:
        is_told: the failure of the last exchange was raised here.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.is_told = False
        self._ranks = ranks
        self._native = library.new_exchange()
        self._group: OwnGroup | None = None
        self._last: list[torch.Tensor] = []  # of the exchange before, in order
        _all.add(self)

    def begin(self, phase: str, stepped: Sequence[Exchanged]) -> None:
        """After the exchange before has ended well. What fails on one rank ends
        the others' exchanges."""
        if self._group is None:
            self._group = OwnGroup(self._ranks, phase)
        self.is_told = False
        order = self._ranks.from_first(phase, self._expected(stepped))
        stepped = [stepped[index] for index in order]
        parameters = [each.parameter for each in stepped]
        outcome = self._native.begin(
            self._group.name, self._ranks.rank, parameters,
            [each.name for each in stepped], [each.owner for each in stepped])
        if outcome[0]:
            self._group.close()
            raise errors.exception_of((*outcome, 0, '', -1))
        self._last = parameters

    def wait(self) -> RankError | None:
        """Waits until all parameters are there, or one cannot be; returns what
        failed, each time."""
        return self._failure('bringing the parameters', self._native.wait())

    def try_again(self) -> None:
        """Exchanges what failed once more. RankError: it has failed again."""
        self.is_told = False
        failure = self._failure('bringing the parameters again',
                                self._native.retry())
        if failure is not None:
            self.is_told = True
            raise failure

    def give_up(self) -> None:
        """Waits, and leaves what has failed as it is."""
        self._native.end()
        self.is_told = False

    def close(self) -> None:
        """As give_up(), for good."""
        self.give_up()
        if self._group is not None:
            self._group.close()

    @property
    def bytes(self) -> tuple[int, int]:
        """Sent and received. Waits for the exchange that goes on."""
        return self._native.bytes()

    def _expected(self, stepped: Sequence[Exchanged]) -> list[int]:
        """Indices in the order in which they are expected to be used: those of
        the exchange before as they were used after it, then the others."""
        self._native.end()
        used = self._native.order()
        position = {id(self._last[index]): place
                    for place, index in enumerate(used)}
        return sorted(range(len(stepped)),
                      key=lambda index: position.get(
                          id(stepped[index].parameter), len(position)))

    def _failure(self, phase: str, outcome: tuple[int, str]
                 ) -> RankError | None:
        code, text = outcome
        if not code:
            return None
        rank, size = self._ranks.rank, self._ranks.size
        if code == errors.ABORTED:
            failed = self._native.failed_rank()
            return RankError(
                f'terrace: rank {failed} of {size} failed while {phase}: '
                f'{text.removesuffix(_THERE)}; flush() on all ranks tries '
                'again', rank, phase, [failed])
        return self._ranks.lose(phase, text)


def give_up_all() -> None:
    """At the end of the process: no thread goes on beside it."""
    for exchange in list(_all):
        exchange.give_up()


_all: weakref.WeakSet[Exchange] = weakref.WeakSet()
