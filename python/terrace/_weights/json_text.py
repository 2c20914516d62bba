"""JSON that others wrote."""

from __future__ import annotations

import json
import os
from typing import Any

# A tensor's entry has three objects and lists and four keys in 50 bytes. What
# has more in fewer bytes would take more memory than such a text may.
_BYTES_OF_CONTAINER = 14
_BYTES_OF_KEY = 10
_ANY = 4096  # bytes that may be of anything
_DEPTH = 8
_PIECE = 1 << 18  # bytes of a text that are looked at in one go
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}'))


def parsed(text: bytes) -> Any:
    """Raises ValueError: it is none, has a key twice, of which it would not
    be clear which one counts, or is nested too deep or too densely."""
    _check_bounds(text)
    return json.loads(text.decode(), object_pairs_hook=_once)


def is_index(value: Any) -> bool:
    """A whole number that counts something."""
    return (isinstance(value, int) and not isinstance(value, bool)
            and value >= 0)


def is_file_name(value: Any) -> bool:
    """Of a file in the folder of the one that says it."""
    if not isinstance(value, str) or value in ('', '.', '..'):
        return False
    try:
        return not any(mark in os.fsencode(value) for mark in b'/\0')
    except UnicodeEncodeError:
        return False


def _check_bounds(text: bytes) -> None:
    """Before anything is made of it, which takes many times the text."""
    brackets, keys = _marks_of(text)
    containers = brackets.count(b'[') + brackets.count(b'{')
    for _ in range(_DEPTH):  # the innermost
        brackets = brackets.replace(b'[]', b'').replace(b'{}', b'')
    if len(brackets) > 2 * _DEPTH:  # fewer are of a text that is cut
        raise ValueError('it is nested too deep')
    if max(containers * _BYTES_OF_CONTAINER,
           keys * _BYTES_OF_KEY) > len(text) + _ANY:
        raise ValueError(f'it has {containers} objects and lists and {keys} '
                         f'keys in {len(text)} bytes')


def _marks_of(text: bytes) -> tuple[bytes, int]:
    """Of what is in no string: the brackets, and how many colons."""
    text = text.replace(rb'\\', b'').replace(rb'\"', b'')
    brackets, keys, in_string = [], 0, 0
    for first in range(0, len(text), _PIECE):
        parts = text[first:first + _PIECE].split(b'"')
        bare = b''.join(parts[in_string::2])
        in_string ^= (len(parts) - 1) & 1
        brackets.append(bare.translate(None, _NO_BRACKETS))
        keys += bare.count(b':')
    return b''.join(brackets), keys


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is there twice")
        found[key] = value
    return found
