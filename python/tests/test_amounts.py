"""Amounts of bytes: the rows that the library reads too."""

import pathlib

import numpy
import pytest

from terrace._base.amounts import budget_bytes
from terrace._base.library import parse_tier

ROWS = (pathlib.Path(__file__).resolve().parents[2] / 'tests' / 'tiers' /
        'byte_counts.txt')


def rows():
    """(text, bytes), None for what is refused."""
    for line in ROWS.read_text().splitlines():
        if line.startswith('#'):
            continue
        text, count = line.rsplit(' ', 1)
        assert text[0] == text[-1] == "'"
        yield text[1:-1], None if count == '-' else int(count)


def test_there_are_rows_of_both_kinds():
    counts = [count for _, count in rows()]
    assert len(counts) > 60
    assert 20 < counts.count(None) < len(counts) - 20


@pytest.mark.parametrize('text, expected', list(rows()))
def test_a_budget_is_what_the_row_says(text, expected):
    if expected is None:
        with pytest.raises(ValueError, match='memory_budget'):
            budget_bytes(text, 1000)
    else:
        assert budget_bytes(text, 1000) == expected


@pytest.mark.parametrize('text, expected', list(rows()))
def test_the_library_reads_the_same(text, expected):
    if expected is None:
        with pytest.raises(ValueError, match='dram'):
            parse_tier(f'dram={text}')
    else:
        assert parse_tier(f'dram={text}') == ('dram', '', expected)


@pytest.mark.parametrize('given, expected', [
    (12345, 12345), (8e9, 8_000_000_000), (numpy.int64(5), 5),
    (2**62 - 1, 2**62 - 1), ('10%', 100), ('0.15 %', 2), ('.15%', None),
    (' 100 % ', 1000), ('1.%', 10), ('%', None), ('10%%', None),
    ('1e1%', None), ('-1%', None), ('0%', None), (0, None), (-5, None),
    (2**62, None), (1e30, None), (None, 'all')])
def test_numbers_and_shares(given, expected):
    if expected is None:
        with pytest.raises(ValueError, match='memory_budget'):
            budget_bytes(given, 1000)
    else:
        assert budget_bytes(given, 1000) == (
            None if expected == 'all' else expected)
