"""Updates of parameters that go on after step()."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from terrace._base.groups import Named
from terrace._state.stepping import late_readers
from terrace._state.stepping.stepping import Stepped, Stepping, Turn


class Late(Stepping):
    """step() returns when the gradients have been read for their norm. A thread
    of the library updates the parameters, in the order in which the last pass
    used them, and operations of torch wait for those that they take. Every
    other method waits for all.

    Where torch.compile has made something, step() makes the updates itself:
    what was compiled reads memory without an operation."""

    def __init__(self, is_asked_for: bool = True) -> None:
        """Unless the program asks for it, parameters elsewhere than in CPU
        memory are stepped in step(), and all others with them."""
        self._is_asked_for = is_asked_for
        self._told_seconds = 0.0  # of the waits of one compiled optimizer

    def attach(self, store: Stepped) -> None:
        late_readers.watch(store)

    def check_new(self, groups: Sequence[Sequence[Named]]) -> None:
        for name, parameter in (pair for named in groups for pair in named):
            where = _elsewhere(parameter)
            if where and self._is_asked_for:
                raise NotImplementedError(
                    f"terrace: parameter '{name}' is {where}; overlap=True "
                    'updates those in CPU memory')

    def check_between_steps(self, store: Stepped, what: str) -> None:
        store.source.settle()

    def flush(self, store: Stepped) -> None:
        store.compiled.flush()
        self.tell(store)

    def close(self, store: Stepped) -> None:
        late_readers.forget(store)
        self.tell(store)

    def tell(self, store: Stepped) -> None:
        """The wait for all updates counts: what asks the model waits for
        none."""
        home = store.settings.home
        if home is None:
            return
        with contextlib.suppress(RuntimeError):  # closed, or a forked child
            waited = store.opened.waited_seconds()
            if waited < self._told_seconds:  # another one, with a count of 0
                self._told_seconds = 0.0
            home.add_wait(waited - self._told_seconds)
            self._told_seconds = waited

    def make_turn(self, store: Stepped, turn: Turn) -> None:
        store.compiled.flush()
        if not (turn.may_be_late and self.is_late(store)):
            super().make_turn(store, turn)
            return
        late_readers.watch(store)
        store.compiled.step_late(turn.parameters, turn.group_of, turn.numbers,
                                 turn.scale, turn.everything)

    def is_late(self, store: Stepped) -> bool:
        """A step that was begun in step() and failed ends there, too."""
        if (late_readers.is_compiled() or len(store.arrangement.turns) > 1
                or store.compiled.incomplete()):
            return False
        return (self._is_asked_for
                or not any(map(_elsewhere, store.places.parameters)))


def _elsewhere(parameter: torch.Tensor) -> str:
    """Of a DTensor the shard that is here is updated."""
    if parameter.device.type != 'cpu':
        return f'on {parameter.device}'
    return ''
