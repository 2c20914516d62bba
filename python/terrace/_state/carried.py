"""All state of an optimizer in memory, on its way from one place to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from terrace._base.arrays import keys_of
from terrace._base.local_shard import local_of, placed_as
from terrace._state import transfer
from terrace._state.compiled import Compiled
from terrace._state.copy_file import CopyFile
from terrace._state.places import Places


class Carried:
    """Copies, which are read as the compiled optimizer is that had the state:
    that one may end, and the next need not have any of it. Immutable.

    Attributes:
        places: as they were there.
        states: all state by place, in the form that transfer.replace takes.
    """

    def __init__(self, compiled: Compiled, places: Places) -> None:
        """MemoryError: there is no room for the copies."""
        numbers = sorted(compiled.with_state())
        self.places = places
        self.states = dict(zip(numbers, transfer.copies(
            compiled, numbers, [places.values_as_kept(places.parameters[number])
                                for number in numbers])))
        self._steps = list(compiled.steps())

    def of(self, parameters: Sequence[torch.Tensor], places: Places
           ) -> dict[int, Mapping[str, torch.Tensor]]:
        """Those of some that have state, by their other places."""
        return {places.of(parameter): self.states[self.places.of(parameter)]
                for parameter in parameters}

    @property
    def bytes(self) -> int:
        """Of memory that the copies take."""
        return sum(local_of(tensor).nbytes for state in self.states.values()
                   for tensor in state.values())

    # As of Compiled.

    def steps(self) -> list[int]:
        return self._steps

    def with_state(self) -> set[int]:
        return set(self.states)

    def incomplete(self) -> bool:
        """What is unfinished is not carried."""
        return False

    def settle(self) -> None:
        """No updates are under way."""

    def end_reading(self) -> None:
        """All stays in memory."""

    def read(self, place: int, offset: int,
             arrays: Mapping[str, torch.Tensor]) -> bool:
        for key, array in arrays.items():
            whole = local_of(self.states[place][key]).reshape(-1)
            array.copy_(whole[offset:offset + array.numel()]
                        .reshape(array.shape))
        return True

    def copies(self, places: Sequence[int],
               parameters: Sequence[torch.Tensor],
               file: CopyFile | None = None) -> list[dict[str, torch.Tensor]]:
        return [{'step': self.states[place]['step'].clone(),
                 **{key: placed_as(parameter, _copy_of(
                     local_of(self.states[place][key]), file))
                    for key in keys_of(parameter)}}
                for place, parameter in zip(places, parameters)]


def _copy_of(tensor: torch.Tensor, file: CopyFile | None) -> torch.Tensor:
    if file is None:
        return tensor.clone()
    return file.empty(tensor.shape).copy_(tensor)
