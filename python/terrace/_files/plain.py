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
from typing import Any, BinaryIO

import torch

from terrace._base.errors import is_no_room

# Containers whose parts are looked at; those of other types are taken whole.
_CONTAINERS = (dict, collections.OrderedDict, collections.Counter, list, tuple,
               set)
# NumPy's kinds of numbers and texts: bool, int, float, complex, bytes, str.
_SCALAR_KINDS = frozenset('biufcSU')
_SCALARS = (bool, int, float, complex, bytes, str)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# What to write in place of things that programs often have.
_INSTEAD = ((enum.Enum, 'its value'), (os.PathLike, 'os.fspath() of it'),
            (argparse.Namespace, 'vars() of it'), (Mapping, 'dict() of it'),
            (tuple, 'tuple() of it'), (frozenset, 'set() of it'),
            (torch.Generator, 'its get_state()'),
            (datetime.date, 'its isoformat()'),
            (datetime.timedelta, 'its total_seconds()'), (int, 'int() of it'),
            (complex, 'complex() of it'), (numbers.Number, 'float() of it'),
            (str, 'str() of it'), (bytes, 'bytes() of it'))


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
        if (fault := _fault(value)) is not None:
            raise _Refusal(lambda part: part).of(name, value, fault)
    raise ValueError('terrace: torch.load(weights_only=True) does not read '
                     f'what was to be saved: {error}') from error


def check_without_elements(named: Mapping[str, Any]) -> None:
    """The same question without copies of what tensors hold. ValueError names
    what cannot be read."""
    for name, value in named.items():
        if (fault := _fault(_sketch(value))) is not None:
            raise _Refusal(_sketch).of(name, value, fault)


def check_file(path: str) -> None:
    """Whether torch.load reads it: all but the bytes of storages, which are
    not read, nor mapped. Raises ValueError; OSError, MemoryError: it could not
    be found out."""
    error = _error_of(lambda: torch.load(path, map_location='meta',
                                         weights_only=True))
    if error is not None:
        raise ValueError(
            'terrace: torch.load(weights_only=True) does not read what was '
            f'written, which was not put in place: {error}') from error


def read(file: BinaryIO) -> Any:
    """What written() wrote. Tensors of a device that is not here are in
    memory."""
    return torch.load(file, map_location=_placed, weights_only=True)


def _placed(storage: torch.UntypedStorage, location: str
            ) -> torch.UntypedStorage:
    try:
        return torch.serialization.default_restore_location(storage, location)
    except RuntimeError:
        return storage


def _through(name: str, value: Any, leaf: Callable[[Any], Any]) -> Any:
    try:
        return _mapped(value, leaf, {})
    except RecursionError:
        raise _too_deep(name) from None


def _mapped(value: Any, leaf: Callable[[Any], Any], done: dict[int, Any]
            ) -> Any:
    """With copies of its containers, and leaf() of all else. A container that
    is shared, or holds itself, does so in the copy."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return leaf(value)
    if id(value) in done:
        return done[id(value)]
    if kind is tuple:
        parts = []
        for part in value:
            parts.append(_mapped(part, leaf, done))
        # A list in it that holds it has led to its copy by now.
        return done.setdefault(id(value), tuple(parts))
    result = done[id(value)] = kind()
    if issubclass(kind, dict):
        for key, part in value.items():
            result[_mapped(key, leaf, done)] = _mapped(part, leaf, done)
    else:
        add = result.add if kind is set else result.append
        # A comprehension would take a frame more of each level.
        for part in value:
            add(_mapped(part, leaf, done))
    # A model's state_dict() has its _metadata there.
    if hasattr(value, '__dict__'):
        vars(result).update(vars(value))
    return result


def _scalar(value: Any) -> Any:
    """Python's of one of NumPy's, if it has the same value."""
    # A program that has not imported numpy has none of its values.
    numpy = sys.modules.get('numpy')
    if (numpy is None or not isinstance(value, numpy.generic)
            or value.dtype.kind not in _SCALAR_KINDS):
        return value
    scalar = value.item()
    # A longdouble stays one: it may have more bits than Python's float.
    if type(scalar) not in _SCALARS:
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
    """Why it cannot be written to the file and read back. MemoryError: there
    is no room to find it out."""
    file = io.BytesIO() if file is None else file

    def there_and_back() -> None:
        torch.save(value, file)
        file.seek(0)
        read(file)

    return _error_of(there_and_back)


def _error_of(work: Callable[[], Any]) -> Exception | None:
    """What says something of the values, and not of the machine."""
    try:
        work()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if is_no_room(error):
            raise MemoryError(f'terrace: {error}') from error
        return error
    return None


class _Refusal:
    """Of values that have a fault in some form."""

    def __init__(self, form: Callable[[Any], Any]) -> None:
        self._form = form
        self._seen: set[int] = set()

    def of(self, name: str, value: Any, fault: Exception) -> ValueError:
        """Says which part of the value has the fault, and what to give."""
        if isinstance(fault, RecursionError):
            return _too_deep(name)
        return self._of_part(name, value, fault) or ValueError(
            f'terrace: {name} cannot be saved: {fault}')

    def _of_part(self, name: str, value: Any, fault: Exception
                 ) -> ValueError | None:
        """None: what has it is beside this value, in one that holds both."""
        self._seen.add(id(value))
        is_whole = True
        for place, part in _parts(value):
            if type(part) in _CONTAINERS and id(part) in self._seen:
                is_whole = False
            elif (of_part := _fault(self._form(part))) is not None:
                found = self._of_part(place.format(name), part, of_part)
                if found is not None:
                    return found
                is_whole = False
        if type(value) in _CONTAINERS and not is_whole:
            return None
        return _refused(name, value, fault)


def _too_deep(name: str) -> ValueError:
    return ValueError(f'terrace: {name} is nested too deep to be saved')


def _refused(name: str, value: Any, fault: Exception) -> ValueError:
    kind = f'{type(value).__module__}.{type(value).__qualname__}'
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
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _instead_of_numpy(value)
    for kind, instead in _INSTEAD:
        if isinstance(value, kind):
            return instead
    return 'numbers, texts, tensors, and lists or dicts of them'


def _instead_of_numpy(value: Any) -> str:
    numpy = sys.modules['numpy']
    for kind, instead in (
            (numpy.ndarray, 'torch.from_numpy() of it, and take its .numpy() '
                            'back,'),
            (numpy.datetime64, 'str() of it'),
            (numpy.timedelta64, 'int() of it'),
            (numpy.longdouble, 'float() of it'),
            (numpy.clongdouble, 'complex() of it')):
        if isinstance(value, kind):
            return instead
    return 'its .item()'


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
