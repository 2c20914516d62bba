"""What an optimizer was asked for."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from terrace._base.daemon import checked_daemon, job_in_use
from terrace._base.paths import path_list
from terrace._base.tiers import read_tiers
from terrace._state.budget import TENTH, Budget


@dataclasses.dataclass(frozen=True)
class Settings:
    """That does not change while it lives.

    Attributes:
        budget, paths: of the memory and the disk for its state.
        memory_place: the node of that memory, '' for the nearest.
        path_budgets: bytes of each path, 0 for what there is; empty: all 0.
        mapped_tiers: texts of far and persistent memory, between these two.
        unsafe_media: an ordinary file may play persistent memory.
        device, device_budget: the accelerator whose memory an offloaded model
            has above all of these, and how much of it; '' for none.
        daemon: the socket of a host's daemon that has memory and disks, ''
            for none.
        job: whose quota of the daemon it is, '' for none that has a name.
        engine: 'auto', 'io_uring' or 'threads'.
        machine_profile: a file's path, '' for none.
        max_gradient_norm: 0 for no clipping.
        activations_above: of an offloaded model: bytes of the least saved
            tensor that goes below, 0 for none.
        threads, chunk_bytes: 0 for the library's own choice.
        names_home: it joins an offloaded model where that is named alone.
        home: the offloaded model whose memory, budget and paths these are
            (see Managed); None: the optimizer's own.
    """

    budget: Budget = Budget()
    memory_place: str = ''
    paths: tuple[str, ...] = ()
    path_budgets: tuple[int, ...] = ()
    mapped_tiers: tuple[str, ...] = ()
    unsafe_media: bool = False
    device: str = ''
    device_budget: Budget = Budget()
    daemon: str = ''
    job: str = ''
    engine: str = 'auto'
    machine_profile: str = ''
    max_gradient_norm: float = 0.0
    skip_nonfinite: bool = False
    bias_correction: bool = True
    activations_above: int = 0
    threads: int = 0
    chunk_bytes: int = 0
    names_home: bool = False
    home: Any = None

    @staticmethod
    def of_places(memory_budget, nvme_path, tiers, daemon=None,
                  **others) -> Settings:
        """Where the state may be: by a budget and paths, by tiers, or by a
        budget of a daemon's."""
        if daemon is not None:
            others['daemon'] = checked_daemon(
                daemon, others, nvme_path=nvme_path, tiers=tiers)
            others['job'] = job_in_use()
            return Settings(Budget.of(memory_budget, has_paths=True), **others)
        if tiers is None:
            paths = path_list(nvme_path)
            return Settings(Budget.of(memory_budget, bool(paths)),
                            paths=tuple(paths), **others)
        for name, value in (('memory_budget', memory_budget),
                            ('nvme_path', nvme_path)):
            if value is not None:
                raise ValueError(f'terrace: tiers and {name} together: the '
                                 'tiers say it all')
        places = read_tiers(tiers)
        if places.memory:
            budget = Budget(places.memory_bytes, places.memory)
        elif places.device and not (places.paths or places.mapped):
            budget = Budget()  # what is below the device is all there
        else:
            budget = Budget(TENTH, f'dram={TENTH}')
        return Settings(budget, places.memory_place, places.paths,
                        places.path_budgets, places.mapped,
                        device=places.device,
                        device_budget=Budget(places.device_bytes or None,
                                             f'hbm:{places.device}'),
                        **others)

    @property
    def unsafe_tiers(self) -> list[str]:
        """Of persistent memory that may be an ordinary file."""
        return [tier for tier in self.mapped_tiers
                if self.unsafe_media and tier.startswith('pmem:')]

    @property
    def names_places(self) -> bool:
        """Whether it was said where the state may be."""
        return self.has_below or self.budget != Budget()

    @property
    def has_below(self) -> bool:
        """Whether there is anything beside memory."""
        return bool(self.paths or self.mapped_tiers or self.daemon
                    or self.device)

    @property
    def top_budget(self) -> Budget:
        """Of the memory that an offloaded model's operations work in."""
        return self.device_budget if self.device else self.budget

    def explain(self, error: MemoryError) -> Exception:
        """What the library says of the budgets' bytes: those that can hold no
        state at all are a wrong argument."""
        if 'below the minimum' not in str(error):
            return error
        below_device = 'bytes of memory below' in str(error)
        budget = self.budget if below_device else self.top_budget
        return ValueError(f'{error} ({budget.said})')

    @property
    def path_name(self) -> str:
        """What its user calls one of the paths."""
        return 'a path of tiers' if self.path_budgets else 'nvme_path'

    @property
    def reads_norm(self) -> bool:
        """Whether a step looks at all gradients before it."""
        return self.max_gradient_norm > 0 or self.skip_nonfinite

    @property
    def has_exclusive_path(self) -> bool:
        """A file or a device, which one optimizer has at a time. One that is
        gone is a directory that fails where nothing is lost."""
        return any(os.path.exists(path) and not os.path.isdir(path)
                   for path in self.paths)

    @property
    def directories(self) -> list[str]:
        """Where files may be made: the paths, and where given files lie. The
        folder of a device's node is no disk."""
        folders = (path if os.path.isdir(path) else
                   os.path.dirname(os.path.realpath(path))
                   for path in self.paths
                   if os.path.isdir(path) or os.path.isfile(path))
        return list(dict.fromkeys(folders))

    def for_library(self, state_bytes: int) -> str:
        """Its JSON, for state of that size."""
        values = {field.name: getattr(self, field.name)
                  for field in dataclasses.fields(self)}
        budget, device_budget = values.pop('budget'), self.device_budget
        del values['home'], values['names_home'], values['device_budget']
        size = budget.bytes_of(state_bytes)
        values['budget_bytes'] = -1 if size is None else size
        values['at_least_minimum'] = budget.is_share
        values['named_tiers'] = bool(budget.tier)
        if self.device:
            values['below_device_bytes'] = values['budget_bytes']
            values['below_device_is_share'] = budget.is_share
            values['budget_bytes'] = device_budget.bytes_of(state_bytes)
            values['at_least_minimum'] = device_budget.is_share
        return json.dumps(values)
