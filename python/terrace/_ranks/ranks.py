"""Several processes, one optimizer: how they agree.

Every exchange goes through the collectives of the given process group, in CPU
memory. Ranks are numbered within that group. What one rank finds out, all hear
in the next exchange, so that none waits for one that gave up; one that is gone
shows within the group's timeout.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from terrace._base.errors import RankError

# What a rank says when all meet: did it fail, its flags, a number for each word
# that must be the same everywhere, and what failed.
_WORDS = 4
_RECORD = struct.Struct(f'=BB{_WORDS}Q428s')


def number_of(value: Any) -> int:
    """64 bits that tell values apart, alike in every process."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return int.from_bytes(digest[:8], 'little')


class Ranks:
    """This process among those of a group; without one, the only one."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.alone = self.size == 1
        self.bytes_sent = 0
        self.bytes_received = 0
        self.seconds = 0.0  # in exchanges
        self._lost: RankError | None = None
        self._process = os.getpid()

    @property
    def lost(self) -> bool:
        """Whether the group failed: every exchange will."""
        return self._lost is not None

    def agree(self, phase: str, error: BaseException | None = None,
              flags: int = 0, **words: Any) -> int:
        """Waits for all ranks; returns the flags that any of them set.

        Args:
            phase: what they are doing, for messages.
            error: what failed here; is raised here, and as a RankError on
                every other rank.
            words: what must be alike everywhere; else ValueError everywhere.
                Underscores are read as spaces.
        """
        if self.alone:
            if error is not None:
                raise error
            return int(flags)
        if error is not None and self._process != os.getpid():
            raise error
        try:
            answers = self._exchange(phase, error, flags, words.values())
        except RankError as lost:
            if error is None:
                raise
            raise error from lost
        if error is not None:
            raise error
        failed = [rank for rank, answer in enumerate(answers) if answer[0]]
        if failed:
            text = answers[failed[0]][-1].rstrip(b'\0').decode(errors='replace')
            raise RankError(
                f'terrace: rank {failed[0]} of {self.size} failed while {phase}'
                f': {text}', self.rank, phase, failed)
        for i, word in enumerate(words):
            numbers = [answer[2 + i] for answer in answers]
            other = next((r for r, n in enumerate(numbers) if n != numbers[0]),
                         None)
            if other is not None:
                raise ValueError(f'terrace: ranks 0 and {other} differ in '
                                 f'{word.replace("_", " ")} while {phase}')
        return functools.reduce(operator.or_,
                                (answer[1] for answer in answers))

    def _exchange(self, phase: str, error: BaseException | None, flags: int,
                  words: Any) -> list[tuple]:
        numbers = [number_of(word) for word in words]
        numbers += [0] * (_WORDS - len(numbers))
        text = '' if error is None else f'{type(error).__name__}: {error}'
        record = bytearray(_RECORD.pack(
            error is not None, flags, *numbers, text.encode()[:428]))
        mine = torch.frombuffer(record, dtype=torch.uint8)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        with self.watched(phase):
            dist.all_gather(every, mine, group=self.group)
        return [_RECORD.unpack(bytes(one.tolist())) for one in every]

    def gather_objects(self, phase: str, thing: Any) -> list[Any]:
        """Returns every rank's `thing`, in order."""
        every: list[Any] = [None] * self.size
        with self.watched(phase):
            dist.all_gather_object(every, thing, group=self.group)
        return every

    def gather_at_first(self, phase: str, thing: Any) -> list[Any]:
        """Returns every rank's `thing`, in order, at rank 0; elsewhere
        nothing."""
        every: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self.watched(phase):
            dist.gather_object(thing, every,
                               dist.get_global_rank(self.group, 0),
                               group=self.group)
        return every or []

    @contextlib.contextmanager
    def watched(self, phase: str) -> Iterator[None]:
        """Around collectives: what they raise becomes a RankError. Of a group
        that failed nothing more can be had, so it is raised again at once.
        RuntimeError: this is a forked child, which has no part in the group."""
        if self._process != os.getpid():
            raise RuntimeError(
                f'terrace: this optimizer belongs to process {self._process}; '
                'a forked child cannot use it')
        if self._lost is not None:
            raise RankError(str(self._lost), self.rank, self._lost.phase)
        started = time.monotonic()
        try:
            yield
        except RankError:
            raise
        except MemoryError as error:  # here; the others wait in vain
            self._lost = RankError(
                f'terrace: rank {self.rank} of {self.size} left the others '
                f'while {phase}: {error}', self.rank, phase)
            raise
        except RuntimeError as error:
            raise self.lose(phase, str(error)) from error
        finally:
            self.seconds += time.monotonic() - started

    def lose(self, phase: str, why: str) -> RankError:
        """The group has failed. Nothing more can be had of it; returns what is
        to be raised."""
        if self._lost is None:
            others = [r for r in range(self.size) if r != self.rank]
            who = (f'rank {others[0]}' if len(others) == 1 else
                   f'one of the ranks {others}')
            self._lost = RankError(
                f'terrace: rank {self.rank} of {self.size} lost {who} while '
                f'{phase}: {why}', self.rank, phase)
        return self._lost

    def from_first(self, phase: str, numbers: Sequence[int]) -> list[int]:
        """Returns, of as many numbers on each rank, those of rank 0."""
        if self.alone or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device='cpu')
        with self.watched(phase):
            dist.broadcast(tensor, dist.get_global_rank(self.group, 0),
                           group=self.group)
        return tensor.tolist()

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Sends contiguous bytes of a tensor to a rank, within watched()."""
        dist.send(tensor.reshape(-1).view(torch.uint8),
                  dist.get_global_rank(self.group, to), group=self.group)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receives bytes into a contiguous tensor, within watched()."""
        dist.recv(tensor.view(-1).view(torch.uint8),
                  dist.get_global_rank(self.group, source), group=self.group)

    def greatest(self, phase: str, numbers: Sequence[int]) -> list[int]:
        """Returns, of as many numbers on each rank, the greatest of each
        place."""
        if self.alone or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device='cpu')
        with self.watched(phase):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()


def ranks_of(group: Any) -> Ranks:
    """The ranks of an optimizer's process_group. ValueError: this process is
    not in it, or it moves no CPU memory; TypeError: it is no group."""
    if group is None:
        return Ranks(None)
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError('terrace: process_group needs '
                         'torch.distributed.init_process_group() first')
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f'terrace: rank {dist.get_rank()} is not in the '
                         'process_group; make the optimizer on its ranks only')
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError('terrace: process_group is a torch.distributed '
                        f'ProcessGroup or None, not {type(group).__name__}')
    if 'cpu:' not in dist.get_backend_config(group):
        raise ValueError(
            'terrace: the process_group moves no CPU memory (its backends: '
            f'{dist.get_backend_config(group)}); '
            'init_process_group("cpu:gloo,cuda:nccl") makes one that does')
    return Ranks(group)


def number_of_ranks() -> int:
    """How many ranks the program has, whether they share something or not."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1
