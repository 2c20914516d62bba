"""Where terrace.save wrote a model's weights."""

from __future__ import annotations

from terrace._weights.json_text import is_file_name, parsed
from terrace._weights.regular_file import whole_of

NAME = 'checkpoint.json'
_MOST = 1 << 30  # bytes, as terrace.load reads


def file_in(path: str) -> str:
    """The name of the file of parameters, in the same folder. Its bytes are
    read as those of any file of weights: terrace.load compares checksums.

    Raises OSError; ValueError: there is none.
    """
    try:
        content = parsed(whole_of(path, _MOST))
        file = content['checkpoint']['parameters']['name']
        if not is_file_name(file):
            raise ValueError(f"its file of parameters is {str(file)[:64]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'terrace: {path} is no checkpoint of terrace.save: '
                         f'{type(error).__name__}: {error}') from None
    return file
