"""Long work shows how far it has come: by a bar of tqdm where that is
installed, else by lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from terrace._base.amounts import bytes_text
from terrace._base.message import say

# Work that is done within this time shows nothing.
_DELAY_SECONDS = 1.0
# Without tqdm so long passes from one line to the next.
_LINE_SECONDS = 10.0


class Progress:
    """A context manager that shows the bytes done of a total. The bar stays as
    it is when an error ends the work."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what = what
        self._total = total_bytes
        self._done = 0
        self._bar = _bar_of(what, total_bytes)
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """So many more bytes are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            say('%s: %s of %s', self._what, bytes_text(self._done),
                bytes_text(self._total))


def _bar_of(what: str, total_bytes: int) -> Any:
    """A bar, or None where tqdm is not installed."""
    try:
        from tqdm import tqdm  # It is optional, and takes long to import.
    except ImportError:
        return None
    bar: Callable[..., Any] = tqdm
    return bar(desc=f'terrace: {what}', total=total_bytes, unit='B',
               unit_scale=True, delay=_DELAY_SECONDS)
