"""Several processes, one optimizer: who keeps which parameter's state, and how
they agree.

Every exchange goes through the collectives of the given process group, in CPU
memory. Ranks are numbered within that group. What one rank finds out, all hear
in the next exchange, so that none waits for one that gave up; one that is gone
shows within the group's timeout.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from terrace._errors import RankError

# What a rank says when all meet: did it fail, its flag, a number for each word
# that must be the same everywhere, and what failed.
_WORDS = 4
_RECORD = struct.Struct(f'=BB{_WORDS}Q428s')
# Small parameters travel together, up to this size; so many transfers of a
# step are under way, each with a buffer of at most one large parameter.
_PACK_BYTES = 1 << 20
_UNDER_WAY = 4


def state_bytes(parameter: torch.Tensor) -> int:
    """Two moments; of a 16-bit parameter a master besides; all float32."""
    return parameter.numel() * (8 if parameter.dtype == torch.float32 else 12)


def owners(groups: Sequence[Mapping[str, Any]], ranks: int) -> list[int]:
    """The rank that keeps the state of each parameter, by position.

    Whole parameters, the largest first, each to the rank that has least; group
    after group, so that a group which is added moves nothing. The same on
    every rank, and about balanced: ranks differ by one parameter at most.
    """
    loads = [(0, rank) for rank in range(ranks)]
    result: list[int] = []
    for group in groups:
        sizes = [state_bytes(p) for p in group['params']]
        mine = [0] * len(sizes)
        for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
            load, mine[i] = loads[0]
            heapq.heapreplace(loads, (load + sizes[i], mine[i]))
        result += mine
    return result


def number_of(value: Any) -> int:
    """64 bits that tell values apart, alike in every process."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return int.from_bytes(digest[:8], 'little')


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back to the end: all ranks wait for one that leaves in the
    midst. Collectives do not let it through meanwhile anyway."""
    handler = signal.getsignal(signal.SIGINT)
    if (threading.current_thread() is not threading.main_thread()
            or not callable(handler)):
        yield
        return
    caught: list[tuple] = []
    signal.signal(signal.SIGINT, lambda *received: caught.append(received))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[-1])


class Ranks:
    """This process among those of a group; without one, the only one."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.alone = self.size == 1
        self.bytes_sent = 0
        self.bytes_received = 0
        self.seconds = 0.0  # in exchanges
        self.owners: list[int] = []  # the rank of each position
        self._lost: RankError | None = None

    @property
    def lost(self) -> bool:
        """Whether the group failed: every exchange will."""
        return self._lost is not None

    def assign(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Shares the parameters of these groups out."""
        if not self.alone:
            self.owners = owners(groups, self.size)

    def own(self, things: Sequence[Any]) -> Sequence[Any]:
        """Of things by position, those of this rank's parameters."""
        if self.alone:
            return things
        return [thing for thing, owner in zip(things, self.owners)
                if owner == self.rank]

    def agree(self, phase: str, error: BaseException | None = None,
              flag: bool = False, **words: Any) -> bool:
        """Waits for all ranks; returns whether any of them set its flag.

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
            return flag
        try:
            answers = self._exchange(phase, error, flag, words.values())
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
        return any(answer[1] for answer in answers)

    def _exchange(self, phase: str, error: BaseException | None, flag: bool,
                  words: Any) -> list[tuple]:
        numbers = [number_of(word) for word in words]
        numbers += [0] * (_WORDS - len(numbers))
        text = '' if error is None else f'{type(error).__name__}: {error}'
        record = bytearray(_RECORD.pack(
            error is not None, flag, *numbers, text.encode()[:428]))
        mine = torch.frombuffer(record, dtype=torch.uint8)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        with self.watched(phase):
            dist.all_gather(every, mine, group=self._group)
        return [_RECORD.unpack(bytes(one.tolist())) for one in every]

    def gather_objects(self, phase: str, thing: Any) -> list[Any]:
        """Everybody's `thing`, by rank."""
        every: list[Any] = [None] * self.size
        with self.watched(phase):
            dist.all_gather_object(every, thing, group=self._group)
        return every

    def gather_at_first(self, phase: str, thing: Any) -> list[Any]:
        """Everybody's `thing`, by rank, at rank 0; elsewhere nothing."""
        every: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self.watched(phase):
            dist.gather_object(thing, every,
                               dist.get_global_rank(self._group, 0),
                               group=self._group)
        return every or []

    @contextlib.contextmanager
    def watched(self, phase: str) -> Iterator[None]:
        """Around collectives: what they raise becomes a RankError. Of a group
        that failed nothing more can be had, so it is raised again at once."""
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
            others = [r for r in range(self.size) if r != self.rank]
            who = (f'rank {others[0]}' if len(others) == 1 else
                   f'one of the ranks {others}')
            self._lost = RankError(
                f'terrace: rank {self.rank} of {self.size} lost {who} while '
                f'{phase}: {error}', self.rank, phase)
            raise self._lost from error
        finally:
            self.seconds += time.monotonic() - started

    @torch.no_grad()
    def broadcast(self, phase: str,
                  parameters: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Each parameter's values as its owner has them, bit for bit. Takes a
        MiB for small ones; a large one goes from where it is to where it is,
        or by way of a copy if its elements do not lie in order."""
        packs: list[list[_Pack]] = [[] for _ in range(self.size)]
        for parameter, owner in parameters:
            if parameter.numel() == 0:
                continue
            if not (packs[owner] and packs[owner][-1].takes(parameter)):
                packs[owner].append(_Pack(owner))
            packs[owner][-1].add(parameter)
        under_way: list[_Pack] = []
        with self.watched(phase):
            # In turn, so that ranks send and receive at the same time.
            for turn in zip_longest(*packs):
                for pack in filter(None, turn):
                    if len(under_way) == _UNDER_WAY:
                        self._finish(under_way.pop(0))
                    pack.start(self._group, self.rank)
                    under_way.append(pack)
            for pack in under_way:
                self._finish(pack)

    def _finish(self, pack: _Pack) -> None:
        pack.finish(self.rank)
        if pack.owner == self.rank:
            self.bytes_sent += pack.bytes
        else:
            self.bytes_received += pack.bytes

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Within watched(): contiguous bytes of a tensor to a rank."""
        dist.send(tensor.reshape(-1).view(torch.uint8),
                  dist.get_global_rank(self._group, to), group=self._group)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Within watched(): into a contiguous tensor."""
        dist.recv(tensor.view(-1).view(torch.uint8),
                  dist.get_global_rank(self._group, source), group=self._group)

    def greatest(self, phase: str, numbers: Sequence[int]) -> list[int]:
        """Of as many numbers on each rank, the greatest of each place."""
        if self.alone or not numbers:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device='cpu')
        with self.watched(phase):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return tensor.tolist()


class _Pack:
    """Parameters of one owner and dtype that travel as one."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.bytes = 0
        self._parameters: list[torch.Tensor] = []
        self._flat: torch.Tensor
        self._in_place = False
        self._work: Any = None

    def takes(self, parameter: torch.Tensor) -> bool:
        first = self._parameters[0]
        return (self.bytes + parameter.nbytes <= _PACK_BYTES
                and first.dtype == parameter.dtype
                and first.device == parameter.device)

    def add(self, parameter: torch.Tensor) -> None:
        self._parameters.append(parameter)
        self.bytes += parameter.nbytes

    def start(self, group: Any, rank: int) -> None:
        first = self._parameters[0].detach()
        self._in_place = len(self._parameters) == 1 and first.is_contiguous()
        try:
            if self._in_place:
                self._flat = first.view(-1)
            elif self.owner == rank:
                self._flat = torch.cat([p.detach().reshape(-1)
                                        for p in self._parameters])
            else:
                count = sum(p.numel() for p in self._parameters)
                self._flat = torch.empty(count, dtype=first.dtype,
                                         device=first.device)
        except RuntimeError as error:  # torch's kind of MemoryError
            raise MemoryError(f'terrace: no buffer of {self.bytes} bytes to '
                              f'exchange parameters: {error}') from error
        # As bytes: nobody computes with them on the way.
        self._work = dist.broadcast(
            self._flat.view(torch.uint8),
            dist.get_global_rank(group, self.owner), group=group, async_op=True)

    def finish(self, rank: int) -> None:
        self._work.wait()
        if self.owner == rank:
            return
        if not self._in_place:
            parts = self._flat.split([p.numel() for p in self._parameters])
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.detach().copy_(part.view(parameter.shape))
        for parameter in self._parameters:
            torch.autograd.graph.increment_version(parameter)


def ranks_of(group: Any) -> Ranks:
    """What an optimizer's process_group says. ValueError: this process is not
    in it, or it moves no CPU memory; TypeError: it is none."""
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


def check_alike(ranks: Ranks, phase: str, groups: Sequence[Mapping[str, Any]],
                error: Exception | None, **words: Any) -> None:
    """That all ranks have the same groups of parameters, and say the same;
    ValueError names the first that differs."""
    described = [[(tuple(p.shape), str(p.dtype)) for p in group['params']]
                 for group in groups]
    try:
        ranks.agree(phase, error, parameters=described, **words)
    except ValueError as differ:
        if differ is error:
            raise
        every = ranks.gather_objects(phase, described)
        if all(one == every[0] for one in every):
            raise  # for another word
        raise ValueError(f'{differ}: {_difference(every)}') from None


def _difference(every: list[list[list[tuple]]]) -> str:
    for rank, groups in enumerate(every):
        if len(groups) != len(every[0]):
            return (f'{len(every[0])} groups on rank 0, {len(groups)} on rank '
                    f'{rank}')
        for g, (first, group) in enumerate(zip(every[0], groups)):
            for i, (a, b) in enumerate(zip_longest(first, group)):
                if a != b:
                    return (f'parameter {i} of group {g} is {_text(a)} on rank '
                            f'0 and {_text(b)} on rank {rank}')
    return 'two ranks alike'


def _text(shape_and_dtype: tuple | None) -> str:
    if shape_and_dtype is None:
        return 'missing'
    shape, dtype = shape_and_dtype
    return f'{list(shape)} of {dtype.removeprefix("torch.")}'
