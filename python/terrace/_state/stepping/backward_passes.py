"""Backward passes, as the gradients that they accumulate tell of them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from terrace._base import library

_APPLY = BackwardCFunction.apply.__code__
# What torch.ops.terrace.python_functions_in_backward() answers.
_SOME, _OF_CHECKPOINTS = 1, 2


class Listener(Protocol):
    """Called by the thread that runs the backward pass, which raises what a
    method raises."""

    def pass_began(self) -> None:
        """Before its first gradient_came()."""

    def gradient_came(self, parameter: torch.Tensor) -> None: ...

    def pass_ends(self) -> None:
        """Before the callbacks that were queued after its first gradient."""

    def pass_ended(self) -> None:
        """After all callbacks that were queued while it ran."""

    def pass_broke(self) -> None:
        """One that began did not come to its end."""


class BackwardPasses:
    """Of the parameters that it follows. What is called a pass is the outermost
    one: a function of it may run others within itself, as checkpoints with
    use_reentrant=True do, and accumulate into a parameter several times.

    Attributes:
        ended: since restart().
        is_open: one has begun, and has not ended.
        whole: only at its end a parameter's gradient is all there: others run
            within it, or may do so.
    """

    def __init__(self, listener: Listener) -> None:
        library.load()
        self.ended = 0
        self.is_open = False
        self.whole = False
        self._listener = weakref.ref(listener)
        self._handles: dict[int, Any] = {}
        self._lock = threading.RLock()  # devices have threads of their own
        # Of the one that is open: what autograd numbers it by, None as long as
        # only one within it was heard of, in this function of it.
        self._number: int | None = None
        self._within: int | None = None
        self._functions = 0
        # Learnt: whether Python's functions ran others within themselves.
        self._reenters = False
        self._is_flat = False

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """These and no others."""
        wanted = {id(p): p for p in parameters if p.requires_grad
                  and p.is_leaf and not is_lazy(p)}
        for key in self._handles.keys() - wanted.keys():
            self._handles.pop(key).remove()
        hook = _hook_of(weakref.ref(self))
        for key in wanted.keys() - self._handles.keys():
            self._handles[key] = (
                wanted[key].register_post_accumulate_grad_hook(hook))

    def restart(self) -> None:
        """Counts from 0."""
        self.ended = 0
        self.forget_open()

    def take_back(self) -> None:
        """The one that ended last does not count."""
        self.ended -= 1

    def forget_open(self) -> None:
        """The one that is open, if there is one, does not count."""
        self.is_open = False

    def came(self, parameter: torch.Tensor) -> None:
        """A gradient was accumulated into it."""
        with self._lock:
            listener = self._listener()
            if listener is None:
                return
            self._see(_outermost_function())
            listener.gradient_came(parameter)

    def _see(self, within: Any) -> None:
        """`within`: the function of the pass that runs the one that this thread
        is in; None: it is in the pass itself."""
        number = torch._C._current_graph_task_id()
        if within is None:
            if not self.is_open or self._number != number:
                self._begin()
                self._know(number)
                self._functions = (
                    torch.ops.terrace.python_functions_in_backward())
                self.whole = (self._reenters
                              or self._functions == _OF_CHECKPOINTS
                              or self._functions == _SOME and not self._is_flat)
            return
        self._reenters = True
        if not self.is_open or (self._number is None
                                and self._within != id(within)):
            self._begin()
            self._number = None
        self.whole = True
        if self._within != id(within):
            self._within = id(within)
            within.register_hook(_after_function(weakref.ref(self)))

    def _begin(self) -> None:
        if self.is_open:
            self._break()
        self.is_open = True
        self._within = None
        self._functions = 0
        listener = self._listener()
        if listener is not None:
            listener.pass_began()

    def _break(self) -> None:
        self.is_open = False
        listener = self._listener()
        if listener is not None:
            listener.pass_broke()

    def _know(self, number: int) -> None:
        """That of the pass that is open, in which this thread is."""
        self._number = number
        _queue(_end_of(weakref.ref(self), number))

    def left_function(self) -> None:
        """This thread is in the pass itself again."""
        with self._lock:
            number = torch._C._current_graph_task_id()
            self._within = None
            if not self.is_open or self._number == number:
                return
            if self._number is not None:  # of one that broke
                self._break()
                self.is_open = True
            self._know(number)

    def ends(self, number: int) -> None:
        with self._lock:
            listener = self._listener()
            if self.is_open and self._number == number and listener is not None:
                listener.pass_ends()

    def end(self, number: int) -> None:
        with self._lock:
            if not self.is_open or self._number != number:
                return
            self.is_open = False
            self.ended += 1
            if self._functions and not self._reenters:
                self._is_flat = True
            listener = self._listener()
            if listener is not None:
                listener.pass_ended()

    def break_open(self) -> None:
        """The one that is open, if there is one, does not go on."""
        if self.is_open:
            self._break()


def _hook_of(passes: weakref.ref[BackwardPasses]) -> Any:
    def hook(parameter: torch.Tensor) -> None:
        found = passes()
        if found is not None:
            found.came(parameter)
    return hook


def _after_function(passes: weakref.ref[BackwardPasses]) -> Any:
    def hook(*_: Any) -> None:
        found = passes()
        if found is not None:
            found.left_function()
    return hook


def _end_of(passes: weakref.ref[BackwardPasses], number: int) -> Any:
    """Behind what others queue while the pass runs: DistributedDataParallel
    gives back the gradients there."""
    def end() -> None:
        found = passes()
        if found is not None:
            found.end(number)

    def ends() -> None:
        found = passes()
        if found is not None:
            found.ends(number)
            _queue(end)
    return ends


def _queue(callback: Callable[[], None]) -> None:
    """At the end of the pass that this thread is in."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _outermost_function() -> Any:
    """Of those of autograd in which this thread is, the node of the first."""
    found, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            found = frame.f_locals['self']
        frame = frame.f_back
    return found
