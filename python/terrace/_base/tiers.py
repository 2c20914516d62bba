"""What users write for tiers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from terrace._base.library import parse_tier
from terrace._base.paths import path_text


@dataclasses.dataclass(frozen=True)
class Tiers:
    """Memory and what lies below it.

    Attributes:
        memory: the text of memory; '' where it was not named.
        memory_bytes: the budget of memory, None then.
        memory_place: its node as 'node1', '' for the nearest.
        paths: of the disks, in their order.
        path_budgets: in bytes, of each of these; 0: what there is.
        mapped: the texts of far and persistent memory.
        device, device_bytes: the accelerator whose memory is above, '' where
            none was named, and the budget there.
    """

    memory: str
    memory_bytes: int | None
    memory_place: str
    paths: tuple[str, ...]
    path_budgets: tuple[int, ...]
    mapped: tuple[str, ...] = ()
    device: str = ''
    device_bytes: int = 0


def read_tiers(texts) -> Tiers:
    """Of texts as 'dram=2GiB' and 'nvme:/mnt/nvme0=100GiB'."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError('terrace: tiers is a list of texts as "dram=2GiB" and '
                        f'"nvme:/mnt/nvme0", not {texts!r}')
    memory: list[tuple[str, int | None, str]] = []
    disks: list[tuple[str, int]] = []
    mapped: list[str] = []
    devices: list[tuple[str, int]] = []
    for text in texts:
        if not isinstance(text, str):
            raise TypeError('terrace: a tier is a text as "dram=2GiB", not '
                            f'{text!r}')
        kind, place, budget = parse_tier(path_text(text))
        if kind == 'nvme':
            disks.append((place, budget))
        elif kind == 'dram':
            memory.append((text, budget, place))
        elif kind in ('far', 'pmem'):
            mapped.append(path_text(text))
        else:
            devices.append((place, budget))
    if len(devices) > 1:
        raise NotImplementedError(
            'terrace: tiers has one device, as "hbm:cuda:0=20GiB", not '
            f'{len(devices)}: a model is offloaded on one')
    if len(memory) > 1:
        raise ValueError('terrace: tiers has one of memory, as "dram=2GiB", '
                         f'not {len(memory)}')
    if not (memory or disks or mapped or devices):
        raise ValueError('terrace: tiers names no tier, as "dram=2GiB" or '
                         '"nvme:/mnt/nvme0"')
    return Tiers(*(memory or [('', None, '')])[0],
                 tuple(path for path, _ in disks),
                 tuple(budget for _, budget in disks), tuple(mapped),
                 *(devices or [('', 0)])[0])
