"""A configuration as the text that the library reads."""

from __future__ import annotations

import base64
import binascii
import json
import math
import numbers
import os
from collections.abc import Mapping
from typing import Any


def text_of(config: Any) -> str:
    """Of values, of a file, or of base64 text. Raises ValueError, which names
    the key or the file."""
    if isinstance(config, Mapping):
        return _text_of_values(config)
    path = os.fspath(config)
    if os.path.exists(path):
        return _text_of_file(path)
    try:
        return base64.urlsafe_b64decode(path).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f'terrace: {path!r} is neither a file nor the base64 '
                         'text of a configuration') from None


def name_of(config: Any) -> str:
    if not isinstance(config, Mapping) and os.path.exists(config):
        return os.path.basename(os.fspath(config))
    return 'the configuration'


def plain(value: Any, path: str) -> Any:
    """Of numbers of numpy and of tensors, and of paths, Python's own."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, 'item') and getattr(value, 'ndim', None) == 0:
        return plain(value.item(), path)
    raise ValueError(f'terrace: {path}: {type(value).__name__} is no value '
                     'that a configuration can have')


def _text_of_file(path: str) -> str:
    with open(path, 'rb') as file:
        content = file.read()
    try:
        # A byte order mark is no part of the text.
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(f'terrace: {path}: not UTF-8 at byte {error.start}, '
                         'as JSON is') from None


def _text_of_values(config: Mapping[str, Any]) -> str:
    values = dict(config)
    # Trainers mean by it that nothing is to be printed; JSON has null for it.
    if plain(values.get('steps_per_print'), 'steps_per_print') == math.inf:
        values['steps_per_print'] = None
    return json.dumps({_name(key, ''): _checked(value, _name(key, ''))
                       for key, value in values.items()})


def _checked(value: Any, path: str) -> Any:
    """The value as JSON has it, and all below."""
    if isinstance(value, Mapping):
        return {_name(key, path): _checked(below, f'{path}.{_name(key, path)}')
                for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_checked(each, path) for each in value]
    value = plain(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'terrace: {path}: {value} is no number that a '
                         'configuration can have')
    return value


def _name(key: Any, path: str) -> str:
    if isinstance(key, str):
        return key
    where = f'in {path}' if path else 'of the configuration'
    raise ValueError(f'terrace: the key {key!r} {where} is no text')
