"""A host's daemon, as a program names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def checked_daemon(daemon: Any, others: Mapping[str, Any],
                   **beside: Any) -> str:
    """Its socket's text, as 'unix:/run/terrace/control.sock'.

    Args:
        others: further settings, of which 'engine' is the daemon's to say.
        beside: what else was said of places, by name; None: nothing.

    Raises:
        TypeError: no text and no path.
        ValueError: something that the daemon's configuration says.
        NotImplementedError: a GPU's memory beside it.
    """
    if not isinstance(daemon, (str, os.PathLike)):
        raise TypeError('terrace: daemon is a socket, as '
                        f'"unix:/run/terrace/control.sock", not {daemon!r}')
    for text in beside.get('tiers') or ():
        if str(text).startswith('hbm'):
            raise NotImplementedError(f'terrace: {text!r} beside a daemon')
    if others.get('engine', 'auto') != 'auto':
        beside['io_engine'] = others['engine']
    for name, value in beside.items():
        if value is not None:
            raise ValueError(f'terrace: daemon and {name} together: the '
                             "daemon's configuration says where state is")
    return os.fspath(daemon)
