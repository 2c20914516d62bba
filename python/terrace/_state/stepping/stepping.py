"""When a step updates the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from terrace._base.groups import Groups, Named
from terrace._state.arrangement import Arrangement
from terrace._state.carried import Carried
from terrace._state.compiled import Compiled
from terrace._state.places import Places
from terrace._state.settings import Settings


class Turn(NamedTuple):
    """What a compiled optimizer takes for one step of its parameters.

    Attributes:
        group_of: by place; -1 of a parameter that is not stepped.
        everything: parameters of all ranks, where the norm of their gradients
            is asked for; else nothing.
        may_be_late: updates may go on after step().
    """

    parameters: Sequence[torch.Tensor]
    group_of: torch.Tensor
    numbers: Sequence[float]
    scale: float
    everything: Sequence[torch.Tensor]
    may_be_late: bool = True


class Stepped(Protocol):
    """The store whose parameters are stepped. A stepping is given it with each
    call, so that neither keeps the other."""

    settings: Settings
    places: Places
    opened: Compiled
    arrangement: Arrangement
    changes: int

    @property
    def compiled(self) -> Compiled: ...

    @property
    def source(self) -> Compiled | Carried: ...

    def step_turns(self, groups: Groups, scale: float,
                   everything: Sequence[torch.Tensor],
                   may_be_late: bool = True) -> None: ...

    def follow_casts(self) -> None: ...

    def flush(self) -> None: ...


class Stepping:
    """The parameters are updated in step(). Other steppings derive from this.

    Attributes:
        frees_gradients: a step frees each gradient as soon as it was used.
    """

    frees_gradients = False

    def attach(self, store: Stepped) -> None:
        """Called once, when the store is made."""

    def check_begun(self, what: str) -> None:
        """RuntimeError: backward has begun a step, or such a step failed."""

    def check_between_steps(self, store: Stepped, what: str) -> None:
        """RuntimeError: a step goes on between calls, or failed there."""

    def check_scaler(self, store: Stepped) -> None:
        """NotImplementedError: the steps come before a GradScaler."""

    def check_new(self, groups: Sequence[Sequence[Named]]) -> None:
        """NotImplementedError: one of these cannot be stepped so."""

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """The store has these parameters now."""

    def flush(self, store: Stepped) -> None:
        """Waits for updates that go on after step(), and raises what failed."""

    def step(self, store: Stepped, groups: Groups, scale: float, skip: bool
             ) -> None:
        """A step of one process alone."""
        if not skip:
            store.step_turns(groups, scale, [])

    def is_late(self, store: Stepped) -> bool:
        """Whether the updates of the next step go on after step()."""
        return False

    def make_turn(self, store: Stepped, turn: Turn) -> None:
        """Steps each parameter at most once."""
        store.compiled.step(turn.parameters, turn.group_of, turn.numbers,
                            turn.scale, turn.everything)

    def tell(self, store: Stepped) -> None:
        """Tells the model that the store joined what updates have cost."""

    def close(self, store: Stepped) -> None:
        """Before the store closes."""
