"""Whether a checkpoint fits what it is loaded into: asked before anything is
changed. All raise a ValueError that says how they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from terrace._base import in_parts


def check_groups(directory: str, saved: Sequence[Mapping[str, Any]],
                 members: Sequence[Sequence[str]] | None,
                 own: Sequence[Sequence[str]]) -> None:
    """`saved` groups of the options, and the names of the parameters in each;
    None: of an older checkpoint, which did not keep them. `own`: those of the
    optimizer."""
    if len(saved) != len(own) or members and (
            [len(names) for names in members] != [len(names) for names in own]):
        theirs = (_counted(len(saved), 'group') if members is None
                  else _sizes(members))
        raise ValueError(f'terrace: {directory} is of another optimizer: it '
                         f'has {theirs}, the optimizer has {_sizes(own)}')
    group_of = {name: group for group, names in enumerate(members or ())
                for name in names}
    for group, names in enumerate(own if members else ()):
        for name in names:
            # One that has none is not the model's, as the library will say.
            if name and group_of.get(name) != group:
                raise ValueError(
                    f"terrace: {directory} is of another optimizer: parameter "
                    f"'{name}' is in group {group} of the optimizer and "
                    f'{_place(group_of.get(name))} there')


def check_tensors(directory: str, saved: Mapping[str, torch.Tensor],
                  own: Mapping[str, torch.Tensor]) -> None:
    """The tensors beside those that are streamed."""
    for name in (*own, *saved):
        here, there = own.get(name), saved.get(name)
        if (here is None or there is None or here.shape != there.shape
                or here.dtype != there.dtype):
            raise ValueError(
                f"terrace: {directory} is of another model: buffer '{name}' is "
                f'{_kind(there)} there and {_kind(here)} in the model')
        fault = _fault_of_copy(there, here)
        if fault:
            raise ValueError(f'terrace: {directory} is of another model: '
                             f"buffer '{name}' {fault}")


def check_taken(path: str, given: Mapping[Any, Any],
                own: Mapping[str, torch.Tensor]) -> None:
    """What a file of torch has for tensors of a model, by name: whether
    load_state_dict() can copy it. Whether it is all, it says itself."""
    for name, there in given.items():
        if not isinstance(name, str):
            raise ValueError(f'terrace: {path} has the key {name!r}, which is '
                             'no name of a tensor')
        here = own.get(name)
        if here is None or not isinstance(there, torch.Tensor):
            continue
        fault = _fault_of_copy(there, here)
        if fault:
            raise ValueError(f"terrace: {path}: '{name}' {fault}")


def _fault_of_copy(there: torch.Tensor, here: torch.Tensor) -> str:
    """Why copy_() does not take a saved tensor; empty: it does."""
    if there.is_meta and not here.is_meta:
        return 'was on the meta device there and has no elements'
    if there.is_quantized and not here.is_quantized:
        return ('is a quantized tensor there and not in the model; write its '
                'dequantize()')
    if there.is_quantized and there.qscheme() != here.qscheme():
        return f'is {there.qscheme()} there and {here.qscheme()} in the model'
    if there.layout != here.layout or there.is_nested != here.is_nested:
        return f'is {_layout(there)} there and {_layout(here)} in the model'
    if not in_parts.can_become(there.dtype, here.dtype):
        return (f'is of {there.dtype} there and of {here.dtype} in the model, '
                'and neither becomes the other')
    return ''


def check_objects(directory: str, saved: Mapping[str, Any],
                  own: Mapping[str, Any]) -> None:
    missing = own.keys() - saved.keys()
    if missing:
        raise ValueError(f'terrace: the checkpoint in {directory} has no '
                         + ', '.join(sorted(missing)))


def _counted(count: int, what: str) -> str:
    return f'{count} {what}' + ('' if count == 1 else 's')


def _sizes(groups: Sequence[Sequence[str]]) -> str:
    sizes = ' and '.join(str(len(names)) for names in groups)
    return f'{_counted(len(groups), "group")} of {sizes or "no"} parameters'


def _place(group: int | None) -> str:
    return 'in none' if group is None else f'in group {group}'


def _layout(tensor: torch.Tensor) -> str:
    return ('nested' if tensor.is_nested else
            str(tensor.layout).removeprefix('torch.'))


def _kind(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return 'missing'
    return f'{list(tensor.shape)} of {str(tensor.dtype).removeprefix("torch.")}'
