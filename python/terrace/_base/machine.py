"""terrace.use_machine_profile."""

from __future__ import annotations

import os

from terrace._base.paths import path_text

_profile = ''


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


def profile() -> str:
    """The file in use; '': none."""
    return _profile
