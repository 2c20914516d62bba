"""terrace.AdamW."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import ParamsT

from terrace._base.groups import Groups, named_in, trained
from terrace._offload.offload import Offload
from terrace._optimizer import checks, loss_scale
from terrace._optimizer.added_group import add_group
from terrace._optimizer.flushed import Flushed
from terrace._optimizer.loaded import Loaded
from terrace._optimizer.loss_scale import LossScale, Scaled
from terrace._optimizer.making import settings_of, store_for
from terrace._optimizer.optimizer_state import OptimizerState, StatePlace
from terrace._optimizer.placement import tell_copy, tell_placement
from terrace._optimizer.state_dict import completed
from terrace._optimizer.state_view import StateView
from terrace._ranks.alike import check_alike
from terrace._ranks.interrupts import uninterrupted
from terrace._ranks.ranks import ranks_of
from terrace._state.compiled import close_all
from terrace._state.settings import Settings
from terrace._state.store import StateStore

atexit.register(close_all)


class AdamW(Flushed, Loaded, Scaled, torch.optim.Optimizer):
    """torch.optim.AdamW whose state need not be in memory.

    Args:
        params: tensors, (name, tensor) pairs, or dicts of groups, as for
            torch.optim.AdamW: dense leaves in CPU or CUDA memory, float32,
            bfloat16 or float16, of any shape and strides. 16-bit ones are
            stepped through a float32 master; what a program writes into
            them between steps counts. Those in CUDA memory, and those of
            terrace.offload, pass through 4 to 32 MiB (of its own budget);
            none of their state is there. Of DTensors, as fully_shard makes
            them, each rank steps its shards; their state is DTensors too.
        lr, betas, eps, weight_decay, maximize: of each group that names no
            own; read anew in every step, so every scheduler works.
        amsgrad, differentiable: as torch.optim.AdamW's; True is refused.
        foreach, capturable, fused: likewise, and make no difference, but that
            with fused=True torch.amp.GradScaler leaves unscaling to step(), as
            it does with a process_group where fused is None.
        memory_budget: how much memory the state may take: bytes, a text as
            "8GiB", "500 MB" or "10%" of the state. The state is 8 bytes an
            element of float32, 12 of a 16-bit parameter. A share that is less
            than what works is raised to that, and the first step's message
            says so. None: a tenth with an nvme_path, all of it without.
        nvme_path: an existing directory, or a list of them on several devices,
            for what the budget does not hold. Also an empty file or a block
            device without data, which is one optimizer's at a time.
        tiers: in place of these two, a list of texts: memory and the disks
            below it, each with a budget, as
            ["dram=2GiB", "nvme:/mnt/nvme0=100GiB", "nvme:/mnt/nvme1"]; without
            one, or with "=all", a disk is used as far as it has room; an
            unnamed dram has a tenth. Budgets are the state's: the copies of
            state_dict() come on top, and in add_param_group() a second place of
            the same budget. Where memory holds all state no disk is opened.
        daemon: in place of disks, the socket of a host's daemon, as
            "unix:/run/terrace/control.sock": it has the memory of the budget,
            which counts against its quotas, and what is below. None: none.
        max_grad_norm: clips the global L2 norm of all gradients, in the pass
            over them that the step makes anyway. None: no clipping.
        io_engine: "auto", "io_uring" or "threads".
        process_group: a torch.distributed group that moves CPU memory, such
            as torch.distributed.group.WORLD over gloo. Each of its ranks then
            keeps the state of its share of the parameters (ZeRO-1: whole
            parameters, balanced by size), and the stepped parameters are
            broadcast. The budget is each rank's, a percentage of it that of
            the state divided by the ranks. Gradients are taken as they are:
            average them first, as DistributedDataParallel does. The
            constructor, step(), add_param_group() and
            consolidate_state_dict() are collective: every rank calls them.
        step_in_backward: of how many backward passes step() is called after,
            if the parameters are to be stepped in the last of them: each part
            of the state as soon as its gradients are there, while backward goes
            on; to the same bits. The gradients are taken (`.grad` is None
            then) and freed: clipping, unscaling or reading them by hand does
            nothing. Options are those of that pass's first gradient. Where a
            function runs backward within itself (checkpoint with
            use_reentrant=True), or in DistributedDataParallel, all is stepped
            at the end of the pass. A parameter that is read detached, or under
            no_grad, in a recomputed part may be stepped by then. 0: in step().
        overlap: True: step() returns when the gradients have been read for
            their norm; a thread updates the parameters, in the order in which
            the last pass used them. An operation that takes one that is not
            updated yet, or writes its gradient, waits; what a backward pass
            begins with waits for all, and so do step(), flush() and whatever
            uses the state. The bits are those of False. See flush(). Ranks of
            a process_group update their shares so. None: True where it joins an
            Offload, without step_in_backward, on one rank; else False.
        offload: the Offload of a model: state, and gradients of its parameters
            too, are of its memory and paths then. A budget that is a share
            grows by that share of both; its close() closes the optimizer. None:
            that of the parameters, on one rank and without places of its own.

    Raises:
        ValueError, TypeError: an argument, also step_in_backward with
            max_grad_norm; a budget in bytes below the minimum, which is named;
            parameters that overlap in memory.
        NotImplementedError: complex or sparse parameters, tensors that wrap
            others but DTensors, these with max_grad_norm or process_group;
            amsgrad=True, differentiable=True; step_in_backward with
            process_group or DTensors, or on several ranks but in
            DistributedDataParallel; overlap=True on a GPU.
        RankError: another rank of the process_group failed or is gone.
        FileNotFoundError, NotADirectoryError, PermissionError, OSError: a
            path, with its errno; a full disk is errno ENOSPC, a budget of
            tiers that is used up EDQUOT, of several the last that was asked.
        MemoryError: the machine has not that much memory, or a daemon's quota.
        ConnectionResetError: later, the daemon is gone; FileNotFoundError:
            nobody listens at its socket.

    One thread at a time runs a method; others wait. Python's lock is given up
    meanwhile. The files are removed by close(), or when the process ends. A
    forked child (a DataLoader's worker) cannot use it and does it no harm.
    """

    _decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        memory_budget: int | str | None = None,
        nvme_path: str | os.PathLike[str] | Sequence[str] | None = None,
        tiers: Sequence[str] | None = None,
        daemon: str | os.PathLike[str] | None = None,
        max_grad_norm: float | None = None,
        io_engine: str = 'auto',
        process_group: Any = None,
        step_in_backward: int = 0,
        overlap: bool | None = None,
        offload: Offload | None = None,
    ) -> None:
        defaults = {'lr': lr, 'betas': betas, 'eps': eps,
                    'weight_decay': weight_decay, 'amsgrad': amsgrad,
                    'maximize': maximize, 'foreach': foreach,
                    'capturable': capturable, 'differentiable': differentiable,
                    'fused': fused, 'decoupled_weight_decay': self._decoupled}
        self._store: StateStore | None = None
        self._scale = LossScale()
        self._view: StateView | None = None
        self._place: StatePlace | None = None
        self._told = False
        self.param_groups = []
        ranks, error, norm = ranks_of(process_group), None, 0.0
        try:
            defaults['betas'] = checks.betas_of(betas)
            checks.check_options(defaults)
            norm = checks.norm_of(max_grad_norm)
            settings = self._further(settings_of(
                memory_budget, nvme_path, tiers, daemon, offload, io_engine,
                norm))
            super().__init__(params, defaults)
            self.register_state_dict_post_hook(_copied)
            self._store = store_for(
                settings, ranks, offload, self.param_groups, overlap,
                step_in_backward, weakref.WeakMethod(self._write_back))
            self._view = StateView(self._store, weakref.ref(self))
            self._place = StatePlace(self._view)
            self._store.add(trained(named_in(self.param_groups)))
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        try:
            check_alike(ranks, 'making the optimizer', self.param_groups,
                        error, max_grad_norm=norm,
                        the_class_of_the_optimizer=type(self).__name__)
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise

    def _write_back(self) -> Groups:
        """Before a step; what is to be stepped."""
        for group in self.param_groups:
            checks.check_followed(group)
        self._view.write_back()
        return self.param_groups

    def _further(self, settings: Settings) -> Settings:
        """What a kind of this asks for besides."""
        return settings

    # What torch.optim.Optimizer keeps as a dict of dicts.
    @property
    def state(self) -> OptimizerState:  # type: ignore[override]
        """The state of each parameter; see StateView."""
        return self._place.state

    @state.setter
    def state(self, given: Any) -> None:
        if self._place is not None:  # not in torch's constructor
            self._place.assign(given)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim.Optimizer.add_param_group, also between steps. Ctrl-C
        comes after it.

        Where the group needs more memory than is reserved (a larger window,
        or more of a budget that grows with the state), memory and room on disk
        are reserved anew and the state is copied there, 4 MiB of each array at
        a time, before the old ones are given back: for that time both are
        taken. With a file or a device as nvme_path, which only one can have,
        it is copied by way of memory. If it fails, all is as before, without
        the group."""
        with uninterrupted():
            add_group(self, self._store, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient.

        Args:
            closure: evaluates the model again and returns the loss, which is
                returned here.

        With step_in_backward it waits for what backward began, and steps the
        rest; after fewer passes, all. backward() raises what paths answer, and
        RuntimeError after more passes. A failure then leaves parameters stepped
        in part, and every later use says to resume from the last checkpoint.

        With a process_group all ranks hear of an error of the closure, not of
        one of a hook: the others wait for the group's timeout.

        Raises:
            OSError (with errno, filename, offset), DataLossError, MemoryError:
                a path failed. Unless it is a DataLossError, step() again with
                the same gradients finishes the step, exactly.
            RuntimeError: a GPU failed; DataLossError if it did for good, and
                parameters there could not be given their new values.
            ValueError: a gradient that cannot be used; nothing was changed.
            RuntimeError: with step_in_backward, options were changed since
                then; set them back and step(). NotImplementedError: GradScaler.
            KeyboardInterrupt: after the step is finished.
            RankError: of a process_group; another rank failed, and step() on
                all of them finishes the step as above (other gradients or a
                skip are then a RuntimeError), or it is gone.
        """
        loss, skip, scale, error = None, False, 1.0, None
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._store.flush()
            self._write_back()
            skip, scale = self._scale.asked(self, self._store)
        except BaseException as caught:  # to be told to the other ranks
            error = caught
        self._store.step(self.param_groups, scale, skip, error)
        if not (self._told or skip) and self._store.holds_state:
            self._told = True
            tell_placement(self._store, self.param_groups)
        return loss

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """What torch puts around step(): its hooks."""
        return loss_scale.taken_back(
            torch.optim.Optimizer.profile_hook_step(func))

    def state_dict(self) -> dict[str, Any]:
        """A copy of all the state, in the form of torch.optim.AdamW's, which
        can load it; what is written into it changes no state here. See `state`
        for its tensors. What it takes is stats()['state_bytes'], of memory;
        with an nvme_path, from 32 MiB on, of disk: its tensors are mapped from
        an unnamed file there, which is gone with the last of them, or with the
        process.

        Raises OSError (errno ENOSPC): the path has no room for that.

        With a process_group: of this rank's share, which only the same share
        can load; of all parameters on the rank that consolidate_state_dict()
        collected them at, until the next step."""
        self._store.check_between_steps('the state is copied')
        tell_copy(self._store, self.param_groups)
        return completed(super().state_dict(), self._store, self.param_groups)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collects the state of all ranks at rank `to` of the process_group:
        the next state_dict() there is of all parameters. Every rank calls it.

        Raises:
            RankError: another rank could not read its share, or is gone.
        """
        error = None
        try:
            self._view.write_back()
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        self._store.collect(to, error)

    def stats(self) -> dict[str, Any]:
        """What the optimizer has, and what it did since it was made.

        `parameters`, their elements. Bytes: `state_bytes` of the state,
        `memory_bytes` reserved for it, `memory_peak_bytes` used of that,
        `resident_bytes` of what stays there, `disk_bytes` on all paths; its
        `chunks`, of at most `chunk_bytes` each; `bytes_read` and
        `bytes_written`; `tiers`, dicts: `name`, `kind`, `budget_bytes` (0: all
        that there is), `used_bytes` and `peak_bytes` of each that is used, of
        memory `hits` (what was in place) and `evictions`; `links`: the `bytes`
        moved `from` one `to` another, and `seconds_blocked`, in which that
        kept all state away; `paths`: what each moved. These, and tiers below
        memory, have a `state` ("healthy", "slow", "refuses writes",
        "unreadable"), `write_error`, `read_` and `write_bytes_per_second`.
        `staging_bytes` pinned for parameters on a GPU, `bytes_from_devices`
        and `bytes_to_devices` copied. Seconds: `step_seconds` in all steps, of
        them `compute_seconds`, and `blocked_seconds`, in which nothing could
        be computed, by what was waited for: `read`, `write`, `space`;
        `updates_waited_seconds` for updates that went on after step(). `steps`
        finished; the last's `gradient_norm` (or 0); `engine`, `engine_reason`,
        `machine_profile` ("holds", or why not), `instruction_set`. `rank` and
        `ranks` of the process_group; all is this rank's. Of several:
        `bytes_sent`, `bytes_received`, `ranks` among the blocked seconds.
        """
        return self._store.stats()

    def close(self) -> None:
        """Gives memory and disk back and removes the files; the optimizer
        cannot be used afterwards. Again: nothing."""
        self._store.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f'terrace: {type(self).__name__} holds memory, files and threads '
            'of this process and cannot be pickled or copied; use '
            'state_dict()')


def _copied(optimizer: AdamW, made: dict[str, Any]) -> None:
    """Before users' hooks see a state_dict()."""
    optimizer._view.copy_into(made['state'])


# For the package's other parts.

def store_of(optimizer: AdamW) -> StateStore:
    return optimizer._store


def write_back(optimizer: AdamW) -> None:
    """What was written into its state, into its store."""
    optimizer._view.write_back()
