"""Attributes of torch's classes and modules that are others for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INHERITED = object()


class Replaced:
    """Puts replacements in place, and later what was there. What others have
    put in place of a replacement since is left to them, so is the replacement
    within it: it has to do right also after restore(). The caller locks."""

    def __init__(self) -> None:
        # Owner, name, its own of that name, what is there in its place.
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def __len__(self) -> int:
        return len(self._replaced)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` of what is there takes its place."""
        own = vars(owner).get(name, _INHERITED)
        replacement = make(getattr(owner, name))
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, own, replacement))

    def restore(self) -> None:
        for owner, name, own, replacement in reversed(self._replaced):
            if getattr(owner, name) is not replacement:
                continue
            if own is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced.clear()
