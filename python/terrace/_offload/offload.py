"""terrace.offload and what it returns."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from terrace._base.groups import Named
from terrace._base.message import say
from terrace._offload import dispatched
from terrace._offload.activations import Activations
from terrace._offload.arguments import (check_model, check_wishes,
                                        settings_of, with_activations,
                                        with_device)
from terrace._offload.blocked import longest_by_module
from terrace._offload.life import Life
from terrace._offload.managed import Managed
from terrace._offload.operands import together
from terrace._offload.placement import tell_beyond, tell_placement
from terrace._offload.readers import arrays
from terrace._offload.readers.entries import offer_addresses
from terrace._offload.readers.leasing import Leasing
from terrace._offload.steps import Steps
from terrace._offload.weights import Weights
from terrace._state.settings import Settings


class Offload:
    """A model whose parameters, or activations, live below.

    The program need not keep it: the parameters live below until close(), or
    until the last of them is gone. At the end of a `with` it is closed.

    Any thread may run operations on the parameters, but two may not write one
    parameter at a time. A forked child (a DataLoader's worker) has none of
    their bytes, and each use raises there. It may offload models of its own.
    """

    def __init__(self, model: torch.nn.Module, settings: Settings,
                 weights: Weights | None, keeps: bool = False) -> None:
        """`keeps` says whether the parameters stay in memory."""
        named = [] if keeps else list(model.named_parameters())
        self._settings = settings
        self._activations: Activations | None = None
        self._keeps = keeps
        self._told_beyond = False
        # Each undoes something that is in place.
        self._undoes: list[Callable[[], None]] = []
        self._undoing = threading.RLock()  # A finalizer may come within.
        try:
            self._managed = Managed(named, together(model, named), settings)
        except MemoryError as error:
            raise settings.explain(error) from None
        try:
            self._take(model, named, weights)
            self._begin(model)
        except BaseException:
            self.close()
            raise

    def _take(self, model: torch.nn.Module, named: list[Named],
              weights: Weights | None) -> None:
        """Takes over all parameters. After an interrupt those that were taken
        are brought back."""
        with (contextlib.nullcontext() if weights else
              arrays.left_their_memory(named)):
            try:
                if weights is None:
                    self._managed.take(named)
                else:
                    weights.bring(self._managed, named)
            except BaseException:
                self._managed.close(
                    restore=any(map(self._managed.has, model.parameters())))
                raise

    def _begin(self, model: torch.nn.Module) -> None:
        parameters = list(model.parameters())
        self._elements = sum(parameter.numel() for parameter in parameters)
        self._before = self._managed.stats()
        self._undoes.append(lambda: dispatched.end(self._managed))
        dispatched.begin(self._managed)
        leasing = Leasing(self._managed)
        self._undoes.append(leasing.end)
        leasing.begin()
        least_bytes = self._settings.activations_above
        if least_bytes:
            self._activations = Activations(self._managed, least_bytes)
            self._undoes.append(self._activations.end)
            self._activations.begin(model)
        self._steps = Steps(model, parameters, self._begin_step,
                            self._end_first_step)
        self._undoes.append(self._steps.end)
        offered = model.register_state_dict_post_hook(offer_addresses)
        self._undoes.append(offered.remove)
        life = Life(parameters, self.close)
        self._undoes.append(life.end)

    def _begin_step(self) -> None:
        self._managed.begin_step()
        arrays.end_unused()
        self._tell()

    def _end_first_step(self) -> None:
        if not self._keeps:
            tell_placement(self._managed.stats(), self._elements,
                           self._settings.top_budget, self._before,
                           self._managed.gradient_bytes,
                           self._managed.state_bytes)
        self._tell()

    def _tell(self) -> None:
        """Called in each step; it makes statistics only where it tells them."""
        if self._activations:
            self._activations.tell()
        if not self._told_beyond:
            self._told_beyond = tell_beyond(*self._managed.over_budget())

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except BaseException as error:
            say('at the end of a with that an error had ended: %s%s',
                str(error) or type(error).__name__,
                '' if self._managed.is_closed else
                '; the model stays offloaded until close()')
            if not isinstance(error, Exception):
                raise  # else the one under way is

    def lease(self, tensor: torch.Tensor, write: bool = False
              ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context manager that yields the tensor. Its bytes are in memory
        meanwhile, for readers that are no operation of torch, such as numpy(),
        data_ptr() and extensions.

        Args:
            tensor: a parameter of the model, or a view of one.
            write: whether its bytes are written meanwhile.

        Raises:
            ValueError: the tensor is none of the model's parameters.
            OSError, DataLossError: its bytes cannot be brought.
            RuntimeError: an update of it failed that went on after step().
        """
        return self._managed.lease(tensor, write)

    def placement(self) -> contextlib.AbstractContextManager[None]:
        """A context manager: tensors that operations of this thread make in it
        live below as parameters do, from when the operation has ended until
        they end themselves. So do caches of keys and values, copies of a
        model's parameters, and other models.

            with offload.placement():
                tokens = model.generate(prompt, max_new_tokens=4000)

        These are tensors in CPU memory of 64 KiB and more. What an operation
        makes for itself is not among them, nor what a backward pass makes, nor
        arrays of numpy. A tensor without contents, as torch.empty() makes it,
        is one once an operation has written it, unless one read it before,
        another thread used it, or somebody had its address. See stats() for
        what has no room.

        Raises:
            RuntimeError: the model is closed, or another process's; nothing is
                below its memory_budget; another library's allocator is torch's.
            MemoryError: there are no addresses for new tensors.
        """
        return self._managed.placement()

    def prefetch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Begins to bring tensors that are away, as far as there is room, and
        waits for none. This is a hint."""
        self._managed.prefetch(list(tensors))

    def retry(self) -> None:
        """Parameters that could not be fetched may be tried again, as after a
        path was repaired. After a backward that failed, a program calls
        zero_grad() and runs forward and backward again."""
        self._managed.retry()

    def flush(self) -> None:
        """Waits until all updates of parameters are done that optimizers which
        joined have left to go on after step().

        Raises what AdamW.flush() raises."""
        self._managed.over_budget()  # A forked child raises its error here.
        self._managed.flush()

    @property
    def error(self) -> Exception | None:
        """The first failure to bring a parameter, which is an OSError or a
        DataLossError with errno, filename and offset; else the first failure to
        update a parameter after step(); None where nothing failed. The
        operation that needed the parameter raised a RuntimeError whose text
        begins with "terrace:"."""
        return self._managed.error()

    def stats(self) -> dict[str, Any]:
        """The model's counters since it was offloaded; after close() they stay
        as they were then.

        `steps` is how many have begun (the documentation says what a step is).
        Bytes: `parameter_bytes` of all parameters, shared ones once;
        `managed_bytes` of parameters and gradients that are offloaded now; the
        `minimum_bytes` of a budget with a tier below, no optimizer counted;
        `budget_bytes` of memory reserved, `joined_bytes` of it because of
        optimizers, `memory_peak_bytes` used of that; `window_bytes` that
        operations may have at a time, `window_peak_bytes` that they had,
        `over_budget_bytes` that single operations took beyond the window, and
        `over_budget_operation`, which took most of that in ordinary memory;
        `disk_bytes` on all paths; `bytes_read` and `bytes_written` there;
        `fetched_bytes` brought back for operations. `managed_tensors`, counted
        as storages; `fetches` that an operation waited for, `fetches_ahead`
        that came before one needed them, `share_ahead` of all of these;
        `placed_tensors`, storages that became so in placement(), and their
        `placed_bytes`; `placed_left_bytes` of those that stayed in memory.
        `evictions`, of them `clean_drops` of what was not written and cost
        nothing; `failures`. Of activations, counted above too:
        `activation_tensors` and `activation_bytes` that were saved,
        `activation_peak_bytes` at a time; of these bytes
        `activation_written_bytes` that left for below and
        `activation_fetched_bytes` that came back; `activation_limit_bytes` of
        the largest that may, `activation_budget_bytes` that they add to a
        share. `blocked_seconds`, by what was waited for: by
        operations `read` for bytes from below and `space` for room for them;
        `updates` of optimizers that joined, closed ones too, of steps whose
        updates have ended: the last one's count after the next or flush().
        `blocked_modules` are the same by module, the ten longest in order: the
        names of those whose parameters were waited for, "gradients" of all of
        them, "activations", and "updates". `tiers`, `links`, `paths`,
        `engine`, `engine_reason`, `machine_profile`: as in
        terrace.AdamW.stats().
        """
        stats = self._managed.stats()
        blocked = stats['blocked_seconds']
        updates = self._managed.waited_seconds
        stats['blocked_modules'] = longest_by_module(
            stats.pop('blocked_tensors'), sum(blocked.values()), updates)
        blocked['updates'] = updates
        fetches = stats['fetches'] + stats['fetches_ahead']
        stats['share_ahead'] = (stats['fetches_ahead'] / fetches if fetches
                                else 0.0)
        stats['steps'] = self._steps.count
        return stats

    def close(self, restore: bool = True) -> None:
        """Waits for updates as flush() does, brings parameters and gradients
        into ordinary memory, closes the optimizers that joined, gives Terrace's
        memory back and removes the files. A second call does nothing.

        Args:
            restore: False: they stay away, and any use of them is a
                RuntimeError. So do those that memory has no room for.

        Raises:
            RuntimeError: a parameter is leased or in use, and nothing has
                changed.
            OSError, DataLossError, MemoryError: not all could be brought, or
                updated; the model is closed all the same.
        """
        try:
            if not self._managed.is_ended:
                self._managed.close(restore)
        finally:
            if self._managed.is_closed:
                self._undo()

    def _undo(self) -> None:
        """Undoes all that is in place. An interrupt leaves the rest in place,
        which another close() undoes."""
        first = None
        with self._undoing:
            for undo in reversed(tuple(self._undoes)):
                try:
                    undo()
                    self._undoes.remove(undo)
                except BaseException as error:
                    first = first or error
        if first is not None:
            raise first

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError('terrace: an Offload holds memory, files and threads '
                        'of this process and cannot be pickled or copied; use '
                        "the model's state_dict()")


def managed_by(offload: Offload) -> Managed:
    """An optimizer that joins the model asks for this."""
    return offload._managed


def offload(model: torch.nn.Module, *,
            memory_budget: int | str | None = None,
            nvme_path: str | os.PathLike[str] | Sequence[str] | None = None,
            tiers: Sequence[str] | None = None,
            hbm_budget: int | str | None = None,
            daemon: str | os.PathLike[str] | None = None,
            parameters: bool = True,
            activations: bool | str = False,
            activations_above: int | str = '1MiB',
            checkpoint: str | os.PathLike[str] | None = None,
            init_buffers: Callable[..., Any] | None = None,
            device: str | torch.device | None = None) -> Offload:
    """Moves a model's parameters and activations below: each is in memory while
    an operation uses it. Losses and gradients stay as they are, bit for bit.

        model = build()
        offload = terrace.offload(model, memory_budget='10%',
                                  nvme_path='/mnt/nvme0')
        optimizer = terrace.AdamW(model.parameters(), offload=offload)

    A terrace.AdamW joins: its state and the gradients of its parameters are
    of the same memory and paths. Beside other optimizers gradients stay in
    memory, and buffers always. Parameters that share memory go on sharing it.
    While a model is offloaded, torch.compile runs everything eagerly.

    Args:
        model: with all parameters in CPU memory or on one accelerator, of any
            dtype, whatever made them. They are copied once; those that are made
            later, as by model.to() or `.data = ...`, are ordinary ones.
        memory_budget: how much memory the parameters may take: bytes, a text as
            "8GiB", "500 MB" or "10%" of the parameters. It must hold twice what
            the operations of the largest module take, with activations also
            that once and five tensors of `activations_above`; a share that is
            less is raised to that, and the first step's message says so. None:
            a tenth with an nvme_path, or tiers without dram; else all. Bytes
            are also for what joins and for activations; a share grows by that
            of gradients and state, and 256 MiB for activations.
        nvme_path, tiers, daemon: as of terrace.AdamW; also "hbm:cuda:0=20GiB".
        hbm_budget: that in short: bytes, or "30%" of the parameters.
        parameters: False: they stay in memory, with activations=True.
        activations: True: what autograd saves in the model's forward goes
            below too, without torch's check that nothing writes to it.
        activations_above: the bytes of the smallest such tensor, or a text.
        checkpoint: where the weights come from of a model that was made on the
            meta device, by `accelerate.init_empty_weights()` or under
            `torch.device('meta')`: a safetensors file, one of torch.save's, a
            folder with such a file, an index of several, or what terrace.save
            wrote. They are read one by one, straight below, whatever fits; of
            another dtype they become the model's. The parameters are new ones,
            with their ties, so that optimizers are made afterwards. Keys are
            those of model.state_dict(), of which tied ones may lack.
        init_buffers: with checkpoint: called with the model, to put buffers in
            place of those on the meta device that no checkpoint has.
        device: with checkpoint: where model and buffers are to be, "cuda:0".

    Raises:
        ValueError, TypeError: an argument; a budget in bytes below the
            minimum, which is named; a parameter that cannot be taken over, as
            one that other processes share, which is named; a checkpoint that
            is none, or does not fit the model, with all names that are
            missing, unexpected or misshapen.
        NotImplementedError: DistributedDataParallel; a ScriptModule; without
            parameters=False, what is sharded; with it, what is on a device.
        RuntimeError: a parameter is offloaded already.
        OSError, MemoryError: as of terrace.AdamW; of the checkpoint's files.
    """
    settings = with_device(settings_of(memory_budget, nvme_path, tiers, daemon),
                           model, hbm_budget, device)
    settings = with_activations(settings, activations, activations_above)
    return opened(model, settings, parameters, checkpoint, init_buffers)


def opened(model: torch.nn.Module, settings: Settings, parameters: bool,
           checkpoint: str | os.PathLike[str] | None = None,
           init_buffers: Callable[..., Any] | None = None) -> Offload:
    """Offloads the model with settings that were read before."""
    check_wishes(parameters, settings.activations_above > 0, checkpoint,
                 init_buffers)
    check_model(model, is_filled=checkpoint is None, keeps=not parameters)
    weights = (None if checkpoint is None else
               Weights(model, checkpoint, init_buffers,
                       settings.device or 'cpu'))
    return Offload(model, settings, weights, keeps=not parameters)
