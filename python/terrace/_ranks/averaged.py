"""Gradients that DistributedDataParallel averages over ranks.

Its reducer sums buckets of gradients while backward goes on, and gives all of
them back in a callback at the end of the pass. Hooks of a parameter run before
the reducer has seen its gradient. So a gradient is averaged at the end of the
pass at the earliest, and only if the pass was no pass of no_sync(), and all
parameters of the model took part in it or are known to be unused.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from terrace._base.groups import Named
from terrace._ranks.ranks import number_of_ranks

_IN_NO_MODEL = ('it is in no DistributedDataParallel, and a program of several '
                'ranks averages gradients before a step: wrap the model, or '
                'leave out step_in_backward')
_BROKEN = 'a backward pass failed before it was'
_NO_REDUCER = 'the model delays the reduction of all its parameters'
_FROZEN = ('the model was wrapped while some of its parameters were frozen, '
           'which it leaves out; wrap it anew')
_NOT_MARKED = ('the backward pass was one of no_sync(), or through a graph '
               'that was averaged before; only passes before the last of a '
               'step may be in no_sync()')
_NOT_FINISHED = ('some parameters of the model had no gradient in the backward '
                 'pass, and find_unused_parameters=True was not said')


class _Model:
    """A model in DistributedDataParallel, which this does not keep.

    Attributes:
        ids: those of the parameters whose gradients it averages.
        fault: why the gradients that it has now are not averaged; '': they
            are.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._of = weakref.ref(model)
        self.ids = set(map(id, _averaged_by(model)))
        self.fault = ''
        self._marks: Sequence[int] = ()
        self._was_pending = False  # The reducer had yet to give back.

    @property
    def is_alive(self) -> bool:
        return self._of() is not None

    def is_of(self, model: DistributedDataParallel) -> bool:
        return self._of() is model

    def pass_began(self) -> None:
        self._was_pending = False
        model = self._of()
        if hasattr(model, 'reducer'):
            self._marks = model.reducer.get_backward_stats()

    def pass_ends(self) -> None:
        """Before the callback of the reducer, unless that was within another
        pass."""
        model = self._of()
        self._was_pending = (hasattr(model, 'reducer')
                             and not _is_finalized(model))

    def pass_ended(self) -> None:
        """After the callback of the reducer."""
        self.fault = self._fault_of_pass()

    def _fault_of_pass(self) -> str:
        model = self._of()
        if not hasattr(model, 'reducer'):
            return _NO_REDUCER
        # When each parameter was marked as ready, in nanoseconds; only the
        # first pass of a static graph, whose parameters are marked together at
        # its end, leaves that alone.
        marks = model.reducer.get_backward_stats()
        if len(marks) < len(self.ids):
            trained = {id(parameter) for parameter in _averaged_by(model)
                       if parameter.requires_grad}
            if len(marks) < len(trained):
                return _FROZEN
        if not _is_finalized(model):
            return _NOT_FINISHED
        if self._was_pending:
            return ''
        if model.static_graph and not any(marks):
            return '' if model.require_forward_param_sync else _NOT_MARKED
        # A single mark may be what it was in the last pass by chance.
        before = self._marks or [0] * len(marks)
        is_marked = any(map(int.__ne__, before, marks))
        return '' if is_marked else _NOT_MARKED


def _is_finalized(model: DistributedDataParallel) -> bool:
    """False: its reducer has marked gradients that it has not given back."""
    try:
        DistributedDataParallel._check_reducer_finalized(model)
    except RuntimeError:
        return False
    return True


def _averaged_by(model: DistributedDataParallel) -> Iterator[torch.Tensor]:
    """All parameters but those that it is told to leave out; several times
    those that have several names."""
    for name, parameter in model.module.named_parameters(
            remove_duplicate=False):
        if name not in model.parameters_to_ignore:
            yield parameter


class _Looked(NamedTuple):
    """For which models were looked for."""

    is_initialized: bool
    parameters: int


class Averages:
    """The models in DistributedDataParallel that average gradients of an
    optimizer's parameters, followed through its backward passes. One thread at
    a time uses it.

    Attributes:
        awaited: whether gradients of the pass that began last may be averaged
            at its end.
    """

    def __init__(self) -> None:
        self.awaited = False
        self._models: list[_Model] = []
        self._looked: _Looked | None = None
        self._in_no_model: set[int] = set()  # ids, of gradients on one of ranks

    def pass_began(self, parameters: Sequence[torch.Tensor]) -> None:
        """Before the reducers have seen a gradient of it. `parameters`: all of
        the optimizer."""
        looked = _Looked(dist.is_available() and dist.is_initialized(),
                         len(parameters))
        if looked != self._looked or not all(m.is_alive for m in self._models):
            self._looked = looked
            self._look(parameters)
        for model in self._models:
            model.pass_began()
        self.awaited = bool(self._models) or number_of_ranks() > 1

    def pass_ends(self) -> None:
        """The reducers may still have what they average."""
        for model in self._models:
            model.pass_ends()

    def pass_ended(self, came: Sequence[torch.Tensor]) -> None:
        """The reducers have given back what they average, of these parameters
        which had gradients in this pass."""
        ids = set(map(id, came))
        for model in self._models:
            if not ids.isdisjoint(model.ids):
                model.pass_ended()
        if number_of_ranks() > 1:
            self._in_no_model |= ids.difference(*(m.ids for m in self._models))

    def pass_broke(self, came: Sequence[torch.Tensor]) -> None:
        ids = set(map(id, came))
        for model in self._models:
            if not ids.isdisjoint(model.ids):
                model.fault = _BROKEN

    def check(self, named: Iterable[Named]) -> None:
        """RuntimeError, NotImplementedError: one of these has a gradient that
        is not averaged."""
        if not self.awaited:
            return
        named = [pair for pair in named if pair[1].grad is not None]
        if any(self._fault_of(parameter) for _, parameter in named):
            # A model may have been wrapped since the last look.
            for model in self._look([parameter for _, parameter in named]):
                model.pass_ended()
                self._in_no_model -= model.ids
        for name, parameter in named:
            why = self._fault_of(parameter)
            if why:
                raise (NotImplementedError if why == _IN_NO_MODEL
                       else RuntimeError)(
                    f"terrace: the gradient of parameter '{name}' is not "
                    'averaged by DistributedDataParallel, and step_in_backward '
                    f'steps no other: {why}')

    def restart(self) -> None:
        """A step was made: what comes next are other gradients."""
        self._in_no_model = set()
        for model in self._models:
            model.fault = ''

    def _fault_of(self, parameter: torch.Tensor) -> str:
        """Where several models have it, those that were wrapped before may
        live on."""
        if id(parameter) in self._in_no_model:
            return _IN_NO_MODEL
        faults = [model.fault for model in self._models
                  if id(parameter) in model.ids]
        return faults[-1] if faults and all(faults) else ''

    def _look(self, parameters: Sequence[torch.Tensor]) -> list[_Model]:
        """The models that were not known. DistributedDataParallel leaves no
        mark on a parameter, so that this goes through all objects of the
        process, for a tenth of a second."""
        self._models = [model for model in self._models if model.is_alive]
        if not self._looked.is_initialized:
            return []
        ids = set(map(id, parameters))
        new = [_Model(each) for each in gc.get_objects()
               if issubclass(type(each), DistributedDataParallel)
               and hasattr(each, 'module')
               and not any(known.is_of(each) for known in self._models)]
        new = [model for model in new if not ids.isdisjoint(model.ids)]
        self._models += new
        return new


def say_of_ranks(error: BaseException, what: str) -> None:
    """Adds to the text of an error of this rank, where there are others."""
    if number_of_ranks() < 2:
        return
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f'{error.strerror}; {what}'
    elif error.args and isinstance(error.args[0], str):
        error.args = (f'{error.args[0]}; {what}', *error.args[1:])
