"""terrace.AdamW."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import ParamsT

from terrace import (_arguments, _checks, _errors, _groups, _library, _machine,
                     _message, _ranks, _scaling, _share, _state, _stats)
from terrace._arguments import Budget
from terrace._positions import Positions

_open = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for optimizer in list(_open):
        optimizer._native.close()


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW whose state need not be in memory.

    Args:
        params: tensors, (name, tensor) pairs, or dicts of groups, as for
            torch.optim.AdamW: dense leaves in CPU or CUDA memory, float32,
            bfloat16 or float16, of any shape and strides. 16-bit ones are
            stepped through a float32 master. Those in CUDA memory pass
            through at most 32 MiB of pinned memory beside the budget; none
            of their state is on the GPU.
        lr, betas, eps, weight_decay: of each group that names no own; read
            anew in every step, so every scheduler works.
        memory_budget: how much memory the state may take: bytes, a text as
            "8GiB", "500 MB" or "10%" of the state. The state is 8 bytes an
            element of float32, 12 of a 16-bit parameter. A share that is less
            than what works is raised to that, and the first step's message
            says so. None: a tenth with an nvme_path, all of it without.
        nvme_path: an existing directory, or a list of them on several devices,
            for what the budget does not hold. Also an empty file or a block
            device without data, which is one optimizer's at a time.
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

    Raises:
        ValueError, TypeError: an argument; a budget in bytes below the
            minimum, which is named; parameters that overlap in memory.
        NotImplementedError: complex or sparse parameters, amsgrad, maximize.
        RankError: another rank of the process_group failed or is gone.
        FileNotFoundError, NotADirectoryError, PermissionError, OSError: a
            path, with its errno; a full disk is errno ENOSPC.
        MemoryError: the machine has not that much memory.

    One thread at a time runs a method; others wait. Python's lock is given up
    meanwhile. The files are removed by close(), or when the process ends. A
    forked child (a DataLoader's worker) cannot use it and does it no harm.
    """

    # torch.amp.GradScaler leaves unscaling and skipping to step().
    _step_supports_amp_scaling = True
    _decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        memory_budget: int | str | None = None,
        nvme_path: str | os.PathLike[str] | Sequence[str] | None = None,
        max_grad_norm: float | None = None,
        io_engine: str = 'auto',
        process_group: Any = None,
    ) -> None:
        defaults = {'lr': lr, 'betas': betas, 'eps': eps,
                    'weight_decay': weight_decay, **_checks.FIXED,
                    **_checks.IGNORED,
                    'decoupled_weight_decay': self._decoupled}
        self._positions, self._copies_all = Positions(), False
        self._paths: list[str] = []
        self._max_grad_norm = 0.0
        self._engine, self._profile = io_engine, _machine.profile()
        self._native: Any = None
        self._loading: dict[str, Any] | None = None
        self._done_with: Callable[[dict[str, Any]], None] | None = None
        self._readers = 0
        self._told = False
        self._scale = 1.0  # of the loss, in the step before
        self._ranks = _ranks.ranks_of(process_group)
        self._collected: dict[int, dict[str, Any]] | None = None
        self.param_groups = []
        error = None
        try:
            _checks.check_options(defaults)
            self._max_grad_norm = _checks.norm_of(max_grad_norm)
            self._paths = _arguments.path_list(nvme_path)
            self._budget = Budget(memory_budget, bool(self._paths))
            _errors.check_paths(self._paths)
            super().__init__(params, defaults)
            self._native = _share.of(_library.new_optimizer(), self._ranks)
            _open.add(self)
            self._reopen()
        except Exception as caught:  # the other ranks are to hear of it
            error = caught
        try:
            _ranks.check_alike(self._ranks, 'making the optimizer',
                               self.param_groups, error,
                               max_grad_norm=self._max_grad_norm,
                               the_class_of_the_optimizer=type(self).__name__)
        except BaseException:
            if self._native is not None:
                self._native.close()
            raise

    # What torch.optim.Optimizer keeps as a dict of dicts.
    @property
    def state(self) -> _state.StateView:  # type: ignore[override]
        """Copies of the state of each parameter; see StateView."""
        return (_state.WholeState if self._copies_all
                else _state.StateView)(self)

    @state.setter
    def state(self, value: Any) -> None:
        if value:
            raise TypeError('terrace: the state is set by load_state_dict')

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
        with _ranks.uninterrupted():
            self._add_group(param_group)

    def _add_group(self, param_group: dict[str, Any]) -> None:
        count = len(self.param_groups)
        error = None
        try:
            super().add_param_group(param_group)
            added = self.param_groups[-1]
            _checks.check_group(added, _groups.names_in(added, count))
            if self._native is not None:
                _state.extend(self)
        except BaseException as caught:
            del self.param_groups[count:]
            if self._native is None or not isinstance(caught, Exception):
                raise
            self._ranks.assign(self.param_groups)
            error = caught
        if self._native is not None:
            self._collected = None
            try:
                _ranks.check_alike(self._ranks, 'adding a group',
                                   self.param_groups[count:], error)
            except BaseException:
                if error is None:
                    _state.move(self, count)  # it was added here only
                raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient.

        Args:
            closure: evaluates the model again and returns the loss, which is
                returned here.

        With a process_group all ranks hear of an error of the closure, not of
        one of a hook: the others wait for the group's timeout.

        Raises:
            OSError (with errno, filename, offset), DataLossError, MemoryError:
                a path failed. Unless it is a DataLossError, step() again with
                the same gradients finishes the step, exactly.
            RuntimeError: a GPU failed; DataLossError if parameters there
                could not be given their new values.
            ValueError: a gradient that cannot be used; nothing was changed.
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
            skip, scale = _scaling.asked(self)
        except BaseException as caught:  # to be told to the other ranks
            if self._ranks.alone:
                raise
            error = caught
        if not self._ranks.alone:
            _share.step(self, skip, scale, error)
        elif not skip:
            self._step_own(scale)
        return loss

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """What torch puts around step(): its hooks."""
        return _scaling.taken_back(
            torch.optim.Optimizer.profile_hook_step(func))

    def state_dict(self) -> dict[str, Any]:
        """A copy in memory of all the state, in the form of
        torch.optim.AdamW's, which can load it. See `state` for its tensors;
        what it takes is stats()['state_bytes'].

        With a process_group: of this rank's share, which only the same share
        can load; of all parameters on the rank that consolidate_state_dict()
        collected them at, until the next step."""
        _message.tell_copy(self)
        self._copies_all = True
        try:
            copy = super().state_dict()
        finally:
            self._copies_all = False
        return _share.completed(copy, self._ranks, self._collected)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collects the state of all ranks at rank `to` of the process_group,
        in memory: the next state_dict() there is of all parameters. Every rank
        calls it.

        Raises:
            RankError: another rank could not read its share, or is gone.
        """
        self._collected = _share.collect(self, to)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state_dict() of this class or of torch.optim.AdamW.
        With a process_group each rank takes its share out of one that is of
        all parameters.

        Raises:
            ValueError: other groups, a tensor of another shape, amsgrad; the
                optimizer is as it was. After any other error it has no state.
        """
        def take(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            # torch would cast the moments to the parameters' dtype.
            self._loading = given
            return {**given, 'state': {}}

        handle = self.register_load_state_dict_pre_hook(take)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._loading = None

    def stats(self) -> dict[str, Any]:
        """What the optimizer has, and what it did since it was made.

        `parameters`, their elements. Bytes: `state_bytes` of the state,
        `memory_bytes` reserved for it, `memory_peak_bytes` used of that,
        `resident_bytes` of what stays there, `disk_bytes` on all paths,
        `bytes_read` and `bytes_written`; `paths`, a list of dicts: the same of
        each path, its `state` ("healthy", "slow", "refuses writes" or
        "unreadable"), last `write_error`, `read_bytes_per_second` and
        `write_bytes_per_second`. `staging_bytes` pinned for parameters on a
        GPU, `bytes_from_devices` and `bytes_to_devices` copied. Seconds:
        `step_seconds` in all steps, of them `compute_seconds`, and
        `blocked_seconds`, in which nothing could be computed, by what was
        waited for: `read`, `write`, `space`. `steps` finished; the last's
        `gradient_norm` (or 0); `engine`, `engine_reason`, `machine_profile`
        ("holds", or why not), `instruction_set`. `rank` and `ranks` of the
        process_group; all is this rank's. Of several: `bytes_sent`,
        `bytes_received`, `ranks` among the blocked seconds.
        """
        if self._holds_nothing:
            result = _stats.of_nothing()
        else:
            result = _stats.shaped(self._native.describe(), self._steps())
        return _stats.with_ranks(result, self._ranks)

    def close(self) -> None:
        """Gives memory and disk back and removes the files; the optimizer
        cannot be used afterwards. Again: nothing."""
        _errors.check(self._native.close())

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f'terrace: {type(self).__name__} holds memory, files and threads '
            'of this process and cannot be pickled or copied; use '
            'state_dict()')

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The end of torch's load_state_dict, which calls this."""
        if self._loading is None:
            raise TypeError('terrace: the state is set by load_state_dict')
        groups = state['param_groups']
        for group in groups:
            _checks.check_options(group)
            group['decoupled_weight_decay'] = self._decoupled
        _share.check(self._loading, self._ranks)
        loaded = _state.found_in(self._loading, self)
        self._collected = None
        try:
            _state.write(self, loaded, self._done_with)
        except BaseException:
            if not self._holds_nothing:
                self._native.reset()
            raise
        self.param_groups = groups

    # Below: between the groups and the compiled optimizer, which knows each
    # parameter by its position in all groups.

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group['params']]

    @property
    def _holds_nothing(self) -> bool:
        return not any(p.numel() for p in self._ranks.own(self._parameters()))

    def _step_own(self, scale: float) -> None:
        """Of the parameters whose state is here."""
        if self._holds_nothing:
            return
        _errors.check(self._native.step(self._parameters(), self._numbers(),
                                        scale, []))
        if not self._told:
            self._told = True
            _message.tell_placement(self)

    def _numbers(self) -> list[float]:
        numbers: list[float] = []
        for group in self.param_groups:
            beta1, beta2 = group['betas']
            numbers += (float(group['lr']), float(beta1), float(beta2),
                        float(group['eps']), float(group['weight_decay']))
        return numbers

    def _steps(self) -> list[int]:
        return self._native.steps()

    def _reopen(self) -> None:
        """Makes the compiled optimizer for all groups, without state."""
        self._ranks.assign(self.param_groups)
        _checks.check_apart(self)
        if self._holds_nothing:
            _errors.check(self._native.close())
            return
        parameters, names, groups = _groups.described(self.param_groups)
        # Of ranks that share the state each gets as much.
        state_bytes = (sum(map(_ranks.state_bytes, parameters))
                       // self._ranks.size)
        budget = self._budget.of(state_bytes)
        try:
            _errors.check(self._native.open(
                parameters, names, groups,
                json.dumps(self._native_options(budget))))
        except MemoryError as error:
            if 'below the minimum' in str(error):
                raise ValueError(f'{error} (memory_budget='
                                 f'{self._budget.given!r})') from None
            raise

    def _native_options(self, budget: int | None) -> dict[str, Any]:
        return {'budget_bytes': -1 if budget is None else budget,
                'at_least_minimum': self._budget.is_share,
                'paths': self._paths, 'engine': self._engine,
                'machine_profile': self._profile,
                'max_gradient_norm': self._max_grad_norm,
                'decoupled_decay': self._decoupled}
