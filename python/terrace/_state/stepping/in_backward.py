"""Steps of parameters that are made while backward goes on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence

import torch

from terrace._base.groups import (Groups, Named, names_of, numbers_of,
                                  parameters_in)
from terrace._base.local_shard import is_dtensor
from terrace._ranks.averaged import Averages, say_of_ranks
from terrace._state.stepping.backward_passes import BackwardPasses
from terrace._state.stepping.stepping import Stepped, Stepping

_NOT_STEPPED = -1  # in place of a group
# What an error of one rank says of the others.
_AFTER_OTHERS = ('other ranks may have made this step in backward: mend that '
                 'and call step() here, before anything else')
_STEPPED_BY_OTHERS = ('other ranks may have made all of this step: resume all '
                      'of them')


class _BegunStep:
    """Of which backward has given some gradients.

    Attributes:
        numbers: the options of all groups.
        group_of: by place.
        order: the places that are stepped, as gradients are expected.
        supplied: places whose gradient was taken.
    """

    def __init__(self, numbers: Sequence[float], group_of: Sequence[int],
                 order: Sequence[int]) -> None:
        self.numbers = numbers
        self.group_of = group_of
        self.order = order
        self.supplied: set[int] = set()

    def wants(self, place: int, parameter: torch.Tensor) -> bool:
        return (self.group_of[place] != _NOT_STEPPED
                and place not in self.supplied and parameter.grad is not None)


class InBackward(Stepping):
    """Steps the parameters in the last of some backward passes, each chunk as
    soon as its gradients are there, and frees the gradients. step() ends that.

    Args:
        passes: how many make a step.
        prepare: of the optimizer, called before a step; gives its groups.
    """

    frees_gradients = True

    def __init__(self, passes: int, prepare: weakref.WeakMethod) -> None:
        self._wanted = passes
        self._prepare = prepare
        self._passes = BackwardPasses(self)
        # The store keeps this stepping, and ends after it.
        self._store_of: weakref.ref[Stepped]
        self._begun: _BegunStep | None = None
        self._averages = Averages()
        self._failure = ''
        self._came: list[int] = []  # places, in this pass
        self._order: list[int] = []  # as gradients came in the last pass

    def attach(self, store: Stepped) -> None:
        self._store_of = weakref.ref(store)

    @property
    def _store(self) -> Stepped:
        store = self._store_of()
        assert store is not None
        return store

    # What does not go with half a step.

    def check_begun(self, what: str) -> None:
        if self._failure:
            raise RuntimeError(self._failure)
        if self._begun is not None:
            raise RuntimeError(
                f'terrace: {what} in the middle of a step that backward began '
                '(step_in_backward); call step() first')

    def check_between_steps(self, store: Stepped, what: str) -> None:
        self.check_begun(what)

    def check_new(self, groups: Sequence[Sequence[Named]]) -> None:
        self.check_begun('parameters are added')
        for name, parameter in (pair for named in groups for pair in named):
            if is_dtensor(parameter):
                raise NotImplementedError(
                    f"terrace: parameter '{name}' is a DTensor, which "
                    'step_in_backward does not step')

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        self._passes.follow(parameters)

    def close(self, store: Stepped) -> None:
        self._passes.follow([])
        self._begun = None

    # The step.

    def check_scaler(self, store: Stepped) -> None:
        """What was stepped in backward had the gradients of a scaled loss."""
        error = NotImplementedError(
            'terrace: step_in_backward steps before a GradScaler has unscaled '
            'the gradients; leave out one of the two')
        if self._begun is not None:
            self._fail(error)
        raise error

    def step(self, store: Stepped, groups: Groups, scale: float, skip: bool
             ) -> None:
        if self._failure:
            raise RuntimeError(self._failure)
        if skip or scale != 1:
            self.check_scaler(store)
        self._passes.break_open()
        if self._begun is None:
            self._averages.check(zip(names_of(groups), parameters_in(groups)))
            super().step(store, groups, scale, skip)
        else:
            self._finish(store, groups)
        self._came = []
        self._averages.restart()
        self._passes.restart()
        self._passes.follow(parameters_in(groups))

    def _finish(self, store: Stepped, groups: Groups) -> None:
        if numbers_of(groups) != self._begun.numbers:
            raise RuntimeError(
                'terrace: options of a group were changed after backward began '
                'the step with them (step_in_backward); set them back, step(), '
                'and change them then')
        again = [name for place, name in enumerate(store.places.names)
                 if place in self._begun.supplied
                 and store.places.parameters[place].grad is not None]
        if again:
            raise RuntimeError(
                f"terrace: parameter '{again[0]}' has another gradient after "
                'backward stepped it with its own (step_in_backward); set it '
                'to None and step() again')
        with self._failing():
            store.compiled.gradual.finish()
        self._begun = None
        store.changes += 1
        # Parameters that have their first gradient, and others that backward
        # did not tell of.
        if any(p.grad is not None for p in parameters_in(groups)):
            super().step(store, groups, 1.0, skip=False)

    # What BackwardPasses says.

    def pass_began(self) -> None:
        self._averages.pass_began(self._store.places.parameters)

    def gradient_came(self, parameter: torch.Tensor) -> None:
        if self._failure:
            raise RuntimeError(self._failure)
        number = self._passes.ended + 1
        if number > self._wanted:
            self._passes.forget_open()  # it has touched nothing
            raise RuntimeError(
                f'terrace: backward pass {number} since the last step() of an '
                f'optimizer that was made with step_in_backward={self._wanted}')
        places = self._store.places
        place = places.of(parameter)
        if place is None:
            return  # it gets one in step()
        self._came.append(place)
        if self._begun is not None and place in self._begun.supplied:
            error = RuntimeError(
                f"terrace: parameter '{places.names[place]}' was given "
                'another gradient by the same backward pass after it was '
                'stepped with one (step_in_backward): a function that it has '
                'not met before runs backward within itself')
            self._fail(error)
            raise error
        if (number == self._wanted and not self._passes.whole
                and not self._averages.awaited):
            self._begin()
            if self._begun.wants(place, parameter):
                self._supply(place, parameter)

    def pass_ends(self) -> None:
        self._averages.pass_ends()

    def pass_ended(self) -> None:
        if self._averages.awaited:
            self._averages.pass_ended(self._came_parameters())
        if self._came:
            last = dict.fromkeys(self._came)
            self._order = [*last, *(p for p in self._order if p not in last)]
            self._came = []
        if self._passes.ended == self._wanted and not self._failure:
            self._step_rest()

    def _step_rest(self) -> None:
        """Steps all that has a gradient and was not stepped in the pass, which
        has ended."""
        store = self._store
        try:
            self._averages.check(store.places.named)
        except Exception:
            self._passes.take_back()
            raise
        try:
            self._begin()
        except Exception as error:
            say_of_ranks(error, _AFTER_OTHERS)
            raise
        for place in self._begun.order:
            parameter = store.places.parameters[place]
            if self._begun.wants(place, parameter):
                self._supply(place, parameter)
        with self._failing():
            store.compiled.gradual.end_supply()

    def pass_broke(self) -> None:
        self._averages.pass_broke(self._came_parameters())
        self._came = []
        if self._begun is None:
            return
        error = RuntimeError(
            'terrace: a backward pass failed after it had stepped some of the '
            'parameters (step_in_backward)')
        self._fail(error)
        raise error

    def _came_parameters(self) -> list[torch.Tensor]:
        parameters = self._store.places.parameters
        return [parameters[place] for place in self._came]

    def _begin(self) -> None:
        """With the options of now; again: nothing."""
        if self._begun is not None:
            return
        store = self._store
        groups = self._prepare()()
        store.follow_casts()
        places, arrangement = store.places, store.arrangement
        arrangement.follow(groups, places.by_id)
        if len(arrangement.turns) > 1:
            raise ValueError('terrace: a parameter is in its group several '
                             'times, which step_in_backward does not step')
        group_of = [
            group if parameter.requires_grad else _NOT_STEPPED
            for group, parameter in zip(arrangement.turns[0].tolist(),
                                        places.parameters)]
        numbers = numbers_of(groups)
        # Backward goes through what was made first at its end.
        known = dict.fromkeys(place for place in self._order
                              if place < len(group_of))
        expected = [place for place
                    in (*known, *(place for place
                                  in reversed(range(len(group_of)))
                                  if place not in known))
                    if group_of[place] != _NOT_STEPPED]
        store.compiled.gradual.begin(
            places.parameters,
            torch.tensor(group_of, dtype=torch.int64, device='cpu'), numbers,
            expected)
        self._begun = _BegunStep(numbers, group_of, expected)
        store.changes += 1

    def _supply(self, place: int, parameter: torch.Tensor) -> None:
        self._begun.supplied.add(place)
        with self._failing():
            self._store.compiled.gradual.supply(place, parameter)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            say_of_ranks(error, _STEPPED_BY_OTHERS)
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """The step cannot be made, nor undone."""
        self._failure = (
            'terrace: a step that backward began failed (step_in_backward), '
            f'and its parameters are stepped in part: {error}; resume from the '
            'last checkpoint')
        self._begun = None
        self._store.compiled.gradual.give_up(str(error))
