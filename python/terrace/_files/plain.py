"""What torch.load(weights_only=True) reads back: found out with that same
reader, before a file is put in another's place."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import io
import numbers
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

# Containers whose parts are looked at; those of other types are taken whole.
_CONTAINERS = (dict, collections.OrderedDict, list, tuple, set)
# NumPy's kinds of numbers and texts: bool, int, float, complex, bytes, str.
_SCALAR_KINDS = frozenset('biufcSU')
_SCALARS = (bool, int, float, complex, bytes, str)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# What to write in place of things that programs often have.
_INSTEAD = ((enum.Enum, 'its value'), (os.PathLike, 'os.fspath() of it'),
            (argparse.Namespace, 'vars() of it'), (Mapping, 'dict() of it'),
            (tuple, 'tuple() of it'), (frozenset, 'set() of it'),
            (torch.Generator, 'its get_state()'),
            (datetime.date, 'its isoformat()'), (numbers.Number, 'str() of it'))


def plain(named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by what they are called, with Python's numbers and texts in place
    of NumPy's, of exactly the same value. ValueError: nested too deep."""
    return {name: _through(name, value, _scalar)
            for name, value in named.items()}


def written(content: Any, named: Mapping[str, Any]) -> io.BytesIO:
    """What torch.save writes of the content, which was read back. ValueError
    names what of it cannot be read; `named` are the values in it, by what they
    are called."""
    file = io.BytesIO()
    error = _fault(content, file)
    if error is None:
        return file
    for name, value in named.items():
        if _fault(value) is not None:
            raise _refusal(name, value, lambda part: part)
    raise ValueError('terrace: torch.load(weights_only=True) does not read '
                     f'what was to be saved: {error}') from error


def check_without_elements(named: Mapping[str, Any]) -> None:
    """The same question without copies of what tensors hold. ValueError names
    what cannot be read."""
    for name, value in named.items():
        if _fault(_sketch(value)) is not None:
            raise _refusal(name, value, _sketch)


def check_file(path: str) -> None:
    """Whether torch.load reads it: all but what tensors hold, which is mapped.
    Raises ValueError."""
    try:
        torch.load(path, map_location='cpu', weights_only=True, mmap=True)
    except Exception as error:
        raise ValueError(
            'terrace: torch.load(weights_only=True) does not read what was '
            f'written, which was not put in place: {error}') from error


def _through(name: str, value: Any, leaf: Callable[[Any], Any]) -> Any:
    try:
        return _mapped(value, leaf, {})
    except RecursionError:
        raise ValueError(f'terrace: {name} is nested too deep to be '
                         'saved') from None


def _mapped(value: Any, leaf: Callable[[Any], Any], done: dict[int, Any]
            ) -> Any:
    """With leaf() of all that is no container. A container in which nothing
    changes is the one that was given; one that is shared stays shared."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return leaf(value)
    if id(value) in done:
        return done[id(value)]
    done[id(value)] = value  # where it holds itself
    is_dict = issubclass(kind, dict)
    old = ([part for pair in value.items() for part in pair] if is_dict
           else list(value))
    new = [_mapped(part, leaf, done) for part in old]
    if any(a is not b for a, b in zip(old, new)):
        result = kind(zip(new[::2], new[1::2]) if is_dict else new)
        if hasattr(value, '__dict__'):  # _metadata, say
            vars(result).update(vars(value))
        done[id(value)] = result
    return done[id(value)]


def _scalar(value: Any) -> Any:
    """Python's of one of NumPy's, if it has the same value."""
    numpy = sys.modules.get('numpy')  # else there are none
    if (numpy is None or not isinstance(value, numpy.generic)
            or value.dtype.kind not in _SCALAR_KINDS):
        return value
    scalar = value.item()
    if type(scalar) not in _SCALARS:  # of more bits than Python's
        scalar = (complex if value.dtype.kind == 'c' else float)(value)
        if scalar != value and value == value:
            return value
    return scalar


def _sketch(value: Any) -> Any:
    def leaf(part: Any) -> Any:
        if type(part) in _TENSORS and not vars(part):
            return torch.empty(0, device='cpu')
        return part
    return _mapped(value, leaf, {})


def _fault(value: Any, file: io.BytesIO | None = None) -> Exception | None:
    """Why it cannot be written to the file and read back."""
    file = io.BytesIO() if file is None else file
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, map_location='cpu', weights_only=True)
    except Exception as error:
        return error
    return None


def _refusal(name: str, value: Any,
             form: Callable[[Any], Any]) -> ValueError:
    """Of a value that has a fault in that form: which part of it has."""
    for place, part in _parts(value):
        if _fault(form(part)) is not None:
            return _refusal(place.format(name), part, form)
    kind = f'{type(value).__module__}.{type(value).__qualname__}'
    fault = _fault(form(value))
    why = ('torch.load(weights_only=True) does not read: it could be saved '
           'and never loaded' if isinstance(fault, pickle.UnpicklingError)
           else f'torch.save does not write: {fault}')
    error = ValueError(
        f'terrace: {name} is a {kind.removeprefix("builtins.")}, which {why}. '
        f'Give {_instead_of(value)} in its place; nothing was written')
    error.__cause__ = fault
    return error


def _instead_of(value: Any) -> str:
    numpy = sys.modules.get('numpy')
    if numpy is not None and isinstance(value, numpy.ndarray):
        return 'torch.from_numpy() of it, and take its .numpy() back,'
    for kind, instead in _INSTEAD:
        if isinstance(value, kind):
            return instead
    return 'numbers, texts, tensors, and lists or dicts of them'


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Of a container: where each is, as a format of the container's name."""
    if isinstance(value, dict):
        for key, part in value.items():
            shown = repr(key)[:64].replace('{', '{{').replace('}', '}}')
            yield 'a key of {}', key
            yield f'{{}}[{shown}]', part
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield f'{{}}[{place}]', part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield 'an element of {}', part
