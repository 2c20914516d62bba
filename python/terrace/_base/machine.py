"""terrace.use_machine_profile and terrace.use_unsafe_media."""

from __future__ import annotations

import os
from typing import Any

from terrace._base.paths import path_text

_profile = ''
_unsafe_media = False


def use_machine_profile(path: str | os.PathLike[str] | None) -> None:
    """Gives the optimizers made from now on what `terrace tune` measured.

    The file says how fast each nvme_path is and how many bytes in flight it
    takes; from there an optimizer follows what the devices do. Without one it
    begins with defaults that suit most drives. `stats()['machine_profile']`
    is "holds", or why the file or a path of it was not used (it is of another
    machine or drive, or the path was not measured under that name), or empty
    where there is none or all state is in memory.

    Args:
        path: a file that `terrace tune --out` wrote; None: none from now on.
            It is read when an optimizer is made whose state needs an
            nvme_path, and when add_param_group has to make it anew; one that
            cannot be read is an error there.

    Raises:
        OSError: the file cannot be read now.
    """
    global _profile
    if path is None:
        _profile = ''
        return
    text = os.path.abspath(path_text(path))
    with open(text, 'rb'):
        _profile = text


def use_unsafe_media(allowed: bool) -> None:
    """Lets an ordinary file play persistent memory, for tests.

    A tier of tiers=['pmem:/some/directory=1GiB'] then need not be persistent
    memory. What it holds is written by msync, as slowly as that is, and each
    optimizer that has one says so when it is made.

    Args:
        allowed: for the optimizers made from now on.
    """
    global _unsafe_media
    _unsafe_media = bool(allowed)


def settings() -> dict[str, Any]:
    """What optimizers made now are given, by the names of Settings: the file
    in use, '' for none, and whether media may be unsafe."""
    return {'machine_profile': _profile, 'unsafe_media': _unsafe_media}
