"""What is said of keys of a configuration."""

from __future__ import annotations

from terrace._base.message import say


def tell_notes(notes: list[dict[str, str]], name: str, each: bool) -> None:
    """On keys of a configuration that have no say, or another one: one line,
    or, where they are asked for, one of each. What contradicts the caller says
    itself always."""
    quiet = [note for note in notes if note['kind'] != 'contradicted']
    if each or len(quiet) <= 1:
        quiet = []
    else:
        say('%d notes on %s; notes=True lists them, settings["notes"] has '
             'them', len(quiet), name)
    for note in notes:
        if note not in quiet:
            say('%s: %s', note['path'], note['text'])
