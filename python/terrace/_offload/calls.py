"""Functions that the calls of a model go through. They also see calls that end
by an interrupt or an exit, of which hooks of the model do not hear.

A table has the functions by model, and the model itself has nothing: a copy of
it, however it is made, is called as it would be otherwise. While the table has
an entry, each call of a module looks itself up there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from terrace._base.process_lock import ProcessLock
from terrace._base.replaced import Entry, Replaced

# It is given a model, what calls the model, and the arguments by position and
# by name; it answers what the call answers.
Through = Callable[[torch.nn.Module, Callable[..., Any], Any, Any], Any]


class _Calls:
    """The functions of one model; the one that began last is outermost."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self.through: tuple[Through, ...] = ()

    def are_of(self, model: torch.nn.Module) -> bool:
        return self._model() is model

    def call(self, model: torch.nn.Module, call: Callable[..., Any],
             arguments: Any, named: Any) -> Any:
        bound = functools.partial(call, model)
        for through in self.through:
            bound = functools.partial(_within, through, model, bound)
        return bound(*arguments, **named)


def begin(model: torch.nn.Module, through: Through) -> None:
    """Calls of the model go through the function until end() of it."""
    with _lock:
        calls = _all.get(id(model))
        if calls is None or not calls.are_of(model):
            calls = _all[id(model)] = _Calls(model)
        calls.through += (through,)
    _through.begin(through)


def end(through: Through) -> None:
    """A second call does nothing."""
    with _lock:
        for key, calls in tuple(_all.items()):
            calls.through = tuple(one for one in calls.through
                                  if one != through)
            if not calls.through:
                del _all[key]
    _through.end(through)


def _looked_up(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def __call__(self: torch.nn.Module, /, *arguments: Any,
                 **named: Any) -> Any:
        calls = _all.get(id(self))
        if calls is None or not calls.are_of(self):
            return call(self, *arguments, **named)
        return calls.call(self, call, arguments, named)
    return __call__


def _within(through: Through, model: torch.nn.Module,
            call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    return through(model, call, arguments, named)


_lock = ProcessLock()
_all: dict[int, _Calls] = {}  # The key is the model's id.
# This also calls what has been compiled of a model.
_through = Replaced(lambda: [Entry(torch.nn.Module, '__call__', _looked_up)])
