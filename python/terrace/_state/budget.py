"""What the state may take of memory, as it was asked for."""

from __future__ import annotations

import dataclasses

from terrace._base.amounts import budget_bytes

TENTH = '10%'


@dataclasses.dataclass(frozen=True)
class Budget:
    """In bytes, or as a share of the state, which follows it and is at least
    what works.

    Attributes:
        given: a number of bytes, a text as '8GiB' or '10%'; None: all of it.
        tier: the text of the tier that it was given as, 'dram=8GiB'; '': of
            none.
        argument: what it was given as else.
    """

    given: float | str | None = None
    tier: str = ''
    argument: str = 'memory_budget'

    @staticmethod
    def of(given: float | str | None, has_paths: bool) -> Budget:
        """None with paths is what DeepSpeed's JSON means, which has no key for
        it."""
        return Budget(TENTH if given is None and has_paths else given)

    @property
    def is_share(self) -> bool:
        return '%' in str(self.given)

    def bytes_of(self, state_bytes: int) -> int | None:
        """None: all of the state, of which a share of nothing is."""
        if self.is_share and state_bytes == 0:
            return None
        return budget_bytes(self.given, state_bytes)

    def may_grow(self, reserved: int) -> bool:
        """Whether more state may take more than the bytes reserved for it."""
        if self.given is None or self.is_share:
            return True
        return reserved < (budget_bytes(self.given, 0) or 0)

    def raised_from(self, reserved: int, state_bytes: int) -> int | None:
        """The bytes that a share was, where more had to be reserved."""
        if not self.is_share:
            return None
        asked = self.bytes_of(state_bytes)
        return asked if asked is not None and reserved > asked else None

    @property
    def said(self) -> str:
        """As a message says it."""
        return (f'tiers: {self.tier!r}' if self.tier else
                f'{self.argument}={self.given!r}')
