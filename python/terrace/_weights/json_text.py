"""JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """Raises ValueError: it is none, has a key twice, of which it would not
    be clear which one counts, or is nested too deep."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError('it is nested too deep') from None


def is_index(value: Any) -> bool:
    """A whole number that counts something."""
    return (isinstance(value, int) and not isinstance(value, bool)
            and value >= 0)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is there twice")
        found[key] = value
    return found
