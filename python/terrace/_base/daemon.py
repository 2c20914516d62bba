"""A host's daemon, as a program names it, and terrace.use_job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MOST_BYTES = 255


_job = ''


def use_job(name: str | None) -> None:
    """Names the job that this process is of, for a host's daemon.

    What is made with `daemon=` from now on is counted to that job of its
    user, by whose quota it is bounded; processes of one job share it.

    Args:
        name: as the daemon's configuration may have it; None: no name, as
            before.

    Raises:
        TypeError, ValueError: no text, or one that is too long or has
            characters that a line cannot have.
    """
    global _job
    name = '' if name is None else name
    if not isinstance(name, str):
        raise TypeError(f'terrace: a job has a text as its name, not {name!r}')
    if len(name.encode()) > _MOST_BYTES or not name.isprintable():
        raise ValueError(f'terrace: {name[:40]!r} is no name of a job: at most '
                         f'{_MOST_BYTES} bytes that a line can have')
    _job = name


def job_in_use() -> str:
    return _job


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
