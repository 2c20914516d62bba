"""What users write for an amount of memory: the spellings of ParseBytes in
terrace/tier.h, and shares. tests/tiers/byte_counts.txt has both to rows."""

from __future__ import annotations

import math
import operator
import re

_UNITS = {'': 1, 'B': 1,
          'KB': 10**3, 'MB': 10**6, 'GB': 10**9, 'TB': 10**12,
          'KIB': 2**10, 'MIB': 2**20, 'GIB': 2**30, 'TIB': 2**40}
_AMOUNT = re.compile(r'\s*([0-9]+)(?:\.([0-9]*))?\s*([A-Za-z]*|%)\s*',
                     re.ASCII)
_MOST = 2**62 - 1  # bytes


def budget_bytes(budget: float | str | None, state_bytes: int) -> int | None:
    """Bytes of a memory_budget: a number of them, '8GiB', '500 MB', or '10%' of
    `state_bytes`. None stays None.

    Raises:
        TypeError, ValueError: anything else, less than a byte, 2^62 and more.
    """
    if budget is None:
        return None
    if isinstance(budget, float) and budget.is_integer():
        budget = int(budget)  # 8e9
    elif hasattr(budget, '__index__') and not isinstance(budget, bool):
        budget = operator.index(budget)  # of numpy, say
    if isinstance(budget, bool) or not isinstance(budget, (int, str)):
        raise TypeError('terrace: memory_budget is bytes, a text as "8GiB" or '
                        f'"10%", or None, not {type(budget).__name__}')
    if isinstance(budget, int):
        bytes_ = budget
    else:
        match = _AMOUNT.fullmatch(budget)
        if match and match[3] == '%':
            share = float(f'{match[1]}.{match[2] or 0}')
            bytes_ = math.ceil(share / 100 * state_bytes)
        elif match and match[3].upper() in _UNITS:
            bytes_ = _whole(match[1], match[2] or '', _UNITS[match[3].upper()])
        else:
            raise ValueError('terrace: memory_budget is bytes, a text as '
                             f'"8GiB" or "10%", or None, not {budget!r}')
    if bytes_ <= 0:
        raise ValueError(f'terrace: memory_budget is {budget!r}, which is no '
                         'memory at all')
    if bytes_ > _MOST:
        raise ValueError(f'terrace: memory_budget is {budget!r}, more bytes '
                         'than can be counted')
    return bytes_


def _whole(digits: str, fraction: str, unit: int) -> int:
    """Of digits.fraction units, rounded down."""
    return (int(digits + fraction) * unit) // 10**len(fraction)


def bytes_text(count: float) -> str:
    """'1.5 GB'."""
    for unit, size in (('TB', 1e12), ('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if count >= size:
            return f'{count / size:.1f} {unit}'
    return f'{count:.0f} bytes'
