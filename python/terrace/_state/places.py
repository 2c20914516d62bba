"""The parameters whose state is kept, each at its place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from terrace._base.arrays import state_bytes
from terrace._base.groups import Named
from terrace._base.local_shard import is_dtensor, local_of


class _Form(NamedTuple):
    """Of a DTensor the shape of its shard."""

    dtype: torch.dtype
    shape: torch.Size
    is_dtensor: bool


class Places:
    """In the compiled optimizer, from 0 on. Immutable.

    Their state is of the dtype and the shape that each had when it got its
    place, or when it was renewed there.

    Attributes:
        parameters, names: by place.
        by_id: from the id of a parameter, which is kept alive, to its place.
    """

    def __init__(self, named: Sequence[Named] = (),
                 forms: Sequence[_Form] = ()) -> None:
        """`forms`: of the first; those of others are as they are now."""
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.by_id = {id(parameter): place for place, parameter
                      in enumerate(self.parameters)}
        self._forms = [*forms,
                       *map(_form_of, self.parameters[len(forms):])]

    def __len__(self) -> int:
        return len(self.parameters)

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self.by_id

    def of(self, tensor: object) -> int | None:
        return self.by_id.get(id(tensor))

    def numbers(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The place of each; -1: it has none."""
        return [self.by_id.get(id(tensor), -1) for tensor in tensors]

    @property
    def named(self) -> list[Named]:
        return list(zip(self.names, self.parameters))

    @property
    def have_elements(self) -> bool:
        return any(math.prod(form.shape) for form in self._forms)

    @property
    def state_bytes(self) -> int:
        return sum(map(state_bytes, self.kept))

    @property
    def kept(self) -> list[torch.Tensor]:
        """As their state is: those that are of another form by now as tensors
        of that, without values."""
        return list(map(self.as_kept, self.parameters))

    def as_kept(self, parameter: torch.Tensor) -> torch.Tensor:
        form = self._forms[self.by_id[id(parameter)]]
        if form.is_dtensor or form == _form_of(parameter):
            return parameter
        return torch.empty(form.shape, dtype=form.dtype, device='cpu')

    def values_as_kept(self, parameter: torch.Tensor) -> torch.Tensor:
        """With its values, of which a master that is not there yet is made."""
        kept = self.as_kept(parameter)
        if kept is parameter:
            return parameter
        values = local_of(parameter).detach()
        if values.numel() != kept.numel():
            return kept.zero_()
        return kept.copy_(values.reshape(kept.shape))

    def extended(self, named: Sequence[Named]) -> Places:
        return Places([*self.named, *named], self._forms)

    def first(self, count: int) -> Places:
        return Places(self.named[:count], self._forms[:count])

    def renewed(self, parameters: Iterable[torch.Tensor]) -> Places:
        """With these as they are now."""
        forms = list(self._forms)
        for parameter in parameters:
            forms[self.by_id[id(parameter)]] = _form_of(parameter)
        return Places(self.named, forms)

    def used(self, group_of: torch.Tensor) -> Places:
        """Without those that are in no group, -1 by place."""
        staying = [place for place, group in enumerate(group_of.tolist())
                   if group >= 0]
        named = self.named
        return Places([named[place] for place in staying],
                      [self._forms[place] for place in staying])

    def is_cast(self, parameter: object) -> bool:
        """Whether it has a place and is of another form by now."""
        place = self.of(parameter)
        return place is not None and _form_of(parameter) != self._forms[place]

    def cast(self) -> list[tuple[torch.Tensor, str]]:
        """Those that are, and how."""
        return [(parameter,
                 f"parameter '{name}' was {_text_of(form)} and is "
                 f'{_text_of(_form_of(parameter))}')
                for (name, parameter), form in zip(self.named, self._forms)
                if _form_of(parameter) != form]


def _form_of(parameter: torch.Tensor) -> _Form:
    return _Form(parameter.dtype, local_of(parameter).shape,
                 is_dtensor(parameter))


def _text_of(form: _Form) -> str:
    return (f'{list(form.shape)} of {str(form.dtype).removeprefix("torch.")}'
            + (' of a DTensor' if form.is_dtensor else ''))
