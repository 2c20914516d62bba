"""What users write for paths."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence


def path_list(paths) -> list[str]:
    """nvme_path as a list: None, one path, or several."""
    if paths is None:
        return []
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Iterable):
        raise TypeError('terrace: nvme_path is a directory or a list of them, '
                        f'not {type(paths).__name__}')
    return [path_text(path) for path in paths]


def path_text(path) -> str:
    """A path as a str that the library can take."""
    text = os.fsdecode(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'terrace: {text!r} is not UTF-8, as a path must '
                         'be') from None
    return text


def file_path(path) -> str:
    """A path as a str that Python's functions take, of any bytes."""
    text = os.fsdecode(path)
    try:
        is_name = b'\0' not in os.fsencode(text)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise ValueError(f'terrace: {text!r} is no name that a file can have')
    return text


def check_paths(paths: Sequence[str], name: str = 'nvme_path') -> None:
    """Each path is there and can be written; it is never made. Whether a file
    or a device will do the library says. `name`: what its user calls it."""
    for path in paths:
        if not path:
            raise ValueError(f'terrace: {name} has an empty path')
        try:
            os.stat(path)
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT, f'terrace: {name} does not exist (it is '
                'never made)', path) from None
        except OSError as error:
            raise OSError(error.errno, f'terrace: {name}: {error.strerror}',
                          path) from None
        wanted = os.W_OK | (os.X_OK if os.path.isdir(path) else 0)
        if not os.access(path, wanted):
            raise PermissionError(
                errno.EACCES, f'terrace: {name} cannot be written', path)
