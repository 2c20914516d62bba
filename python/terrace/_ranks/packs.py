"""Parameters on their way from the ranks that stepped them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from terrace._ranks.ranks import Ranks

# Small parameters travel together, up to this size; so many transfers of a
# step are under way, each with a buffer of at most one large parameter.
_PACK_BYTES = 1 << 20
_UNDER_WAY = 4


@torch.no_grad()
def broadcast(ranks: Ranks, phase: str,
              parameters: Sequence[tuple[torch.Tensor, int]]) -> None:
    """Brings each parameter's values from its owner to all ranks, bit for bit.
    Small parameters take a MiB of memory; a large one goes from where it is to
    where it is, or by way of a copy if its elements do not lie in order."""
    packs: list[list[Pack]] = [[] for _ in range(ranks.size)]
    for parameter, owner in parameters:
        if parameter.numel() == 0:
            continue
        if not (packs[owner] and packs[owner][-1].takes(parameter)):
            packs[owner].append(Pack(owner))
        packs[owner][-1].add(parameter)
    under_way: list[Pack] = []
    with ranks.watched(phase):
        # In turn, so that ranks send and receive at the same time.
        for turn in zip_longest(*packs):
            for pack in filter(None, turn):
                if len(under_way) == _UNDER_WAY:
                    under_way.pop(0).finish(ranks)
                pack.start(ranks)
                under_way.append(pack)
        for pack in under_way:
            pack.finish(ranks)


class Pack:
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

    def start(self, ranks: Ranks) -> None:
        first = self._parameters[0].detach()
        self._in_place = len(self._parameters) == 1 and first.is_contiguous()
        try:
            if self._in_place:
                self._flat = first.view(-1)
            elif self.owner == ranks.rank:
                self._flat = torch.cat([p.detach().reshape(-1)
                                        for p in self._parameters])
            else:
                count = sum(p.numel() for p in self._parameters)
                self._flat = torch.empty(count, dtype=first.dtype,
                                         device=first.device)
        except RuntimeError as error:  # torch's kind of MemoryError
            raise MemoryError(f'terrace: no buffer of {self.bytes} bytes to '
                              f'exchange parameters: {error}') from error
        # As bytes: nothing is computed with them on the way.
        self._work = dist.broadcast(
            self._flat.view(torch.uint8),
            dist.get_global_rank(ranks.group, self.owner), group=ranks.group,
            async_op=True)

    def finish(self, ranks: Ranks) -> None:
        self._work.wait()
        if self.owner == ranks.rank:
            ranks.bytes_sent += self.bytes
            return
        ranks.bytes_received += self.bytes
        if not self._in_place:
            parts = self._flat.split([p.numel() for p in self._parameters])
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.detach().copy_(part.view(parameter.shape))
        for parameter in self._parameters:
            torch.autograd.graph.increment_version(parameter)
