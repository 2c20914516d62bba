"""The parameters whose state is kept, each at its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from terrace._base.arrays import state_bytes
from terrace._base.groups import Named
from terrace._base.local_shard import is_dtensor, local_of


class Places:
    """In the compiled optimizer, from 0 on. Immutable.

    Attributes:
        parameters, names: by place.
        by_id: from the id of a parameter, which is kept alive, to its place.
    """

    def __init__(self, named: Sequence[Named] = ()) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.by_id = {id(parameter): place for place, parameter
                      in enumerate(self.parameters)}
        self._forms = list(map(_form_of, self.parameters))

    def __len__(self) -> int:
        return len(self.parameters)

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self.by_id

    def of(self, tensor: object) -> int | None:
        return self.by_id.get(id(tensor))

    @property
    def named(self) -> list[Named]:
        return list(zip(self.names, self.parameters))

    @property
    def have_elements(self) -> bool:
        return any(local_of(p).numel() for p in self.parameters)

    @property
    def state_bytes(self) -> int:
        return sum(map(state_bytes, self.parameters))

    def extended(self, named: Sequence[Named]) -> Places:
        return Places([*self.named, *named])

    def first(self, count: int) -> Places:
        return Places(self.named[:count])

    def used(self, group_of: torch.Tensor) -> Places:
        """Without those that are in no group, -1 by place."""
        groups = group_of.tolist()
        return Places([pair for pair, group in zip(self.named, groups)
                       if group >= 0])

    def cast(self) -> list[tuple[torch.Tensor, str]]:
        """Parameters that are of another dtype, size or kind by now,
        and how."""
        return [(parameter,
                 f"parameter '{name}' was {_text_of(form)} and is "
                 f'{_text_of(_form_of(parameter))}')
                for (name, parameter), form in zip(self.named, self._forms)
                if _form_of(parameter) != form]


def _form_of(parameter: torch.Tensor) -> tuple[torch.dtype, int, bool]:
    return (parameter.dtype, local_of(parameter).numel(),
            is_dtensor(parameter))


def _text_of(form: tuple[torch.dtype, int, bool]) -> str:
    return (f'{form[1]} elements of {str(form[0]).removeprefix("torch.")}'
            + (' of a DTensor' if form[2] else ''))
