"""A process group of one user's own, on the ranks of another."""

from __future__ import annotations

import os
import uuid
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from terrace._ranks.ranks import Ranks


class OwnGroup:
    """Collectives over gloo, in CPU memory, that do not mix with those of the
    program, whatever thread makes them. torch's lists of groups do not have it,
    so that ranks need not have made the same groups before.

    Attributes:
        name: by which the library finds the group.
        close: ends the group; again: nothing.
    """

    def __init__(self, ranks: Ranks, phase: str) -> None:
        """All ranks call this. RankError: one did not come."""
        self.name = 'terrace ' + ranks.gather_objects(
            phase, uuid.uuid4().hex)[0]
        store = dist.PrefixStore(self.name, c10d._get_default_store())
        timeout = _timeout_of(ranks.group)
        with ranks.watched(phase):
            backend = dist.ProcessGroupGloo(store, ranks.rank, ranks.size,
                                            timeout=timeout)
        group = ProcessGroup(store, ranks.rank, ranks.size)
        kind, cpu = ProcessGroup.BackendType.GLOO, torch.device('cpu')
        ProcessGroup._set_default_backend(group, kind)
        ProcessGroup._register_backend(group, cpu, kind, backend)
        ProcessGroup._set_group_name(group, self.name)
        c10d._register_process_group(self.name, group)
        _all[self.name] = os.getpid(), group
        # At the end of the process nothing is to be done.
        self.close = weakref.finalize(self, _close, self.name)
        self.close.atexit = False


def _close(name: str) -> None:
    """A forked child keeps its parent's group, whose threads are not there to
    be ended."""
    process, _ = _all[name]
    if process == os.getpid():
        c10d._unregister_process_group(name)
        del _all[name]


def _timeout_of(group: Any) -> timedelta:
    """The timeout of a group's collectives in CPU memory."""
    backend = ProcessGroup._get_backend(group, torch.device('cpu'))
    options = getattr(backend, 'options', None)
    return getattr(options, '_timeout', c10d.default_pg_timeout)


# By name, the process that made the group, and the group.
_all: dict[str, tuple[int, Any]] = {}
