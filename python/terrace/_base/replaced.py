"""The one patcher of torch's functions: attributes of its classes and modules
that are others while someone uses that, and then what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from terrace._base.process_lock import ProcessLock

_INHERITED = object()


class Entry(NamedTuple):
    """An attribute of a class or module, and what makes its replacement of
    what is there. Entries of what this torch does not have are passed over."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


class _Put(NamedTuple):
    """A replacement that is in place."""

    owner: Any
    name: str
    own: Any  # what the owner itself had of that name
    replacement: Any

    def take_back(self) -> bool:
        """False: others have put something in its place since."""
        if vars(self.owner).get(self.name) is not self.replacement:
            return False
        if self.own is _INHERITED:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)
        return True


class Replaced:
    """The replacements of a table, from the first user's begin() to the last
    one's end(). Thread-safe; finalizers may call it. A forked child has its
    parent's users.

    What others have put in place of a replacement stays theirs, and the
    replacement within it, which has to do right also then. Once they have put
    the replacement back, the next begin() or end() takes it away.

    Attributes:
        users: those that have begun and not ended.
        lock: of begin() and end(), for what a caller decides them by.
    """

    def __init__(self, table: Callable[[], Iterable[Entry]]) -> None:
        self.users: tuple[Any, ...] = ()
        self.lock = ProcessLock()
        self._table = table
        self._put: list[_Put] = []

    def begin(self, user: Any) -> None:
        """Until end() of the same; again: nothing. After an error or an
        interrupt all is as before."""
        with self.lock:
            if user in self.users:
                return
            try:
                # First, so that end() undoes what an interrupt leaves.
                self.users += (user,)
                if len(self.users) == 1:
                    self._take_back()
                    for entry in self._table():
                        self._put_in_place(entry)
            except BaseException:
                self.end(user)
                raise

    def end(self, user: Any) -> None:
        """Again: nothing."""
        with self.lock:
            self.users = tuple(one for one in self.users if one != user)
            if not self.users:
                self._take_back()

    def _put_in_place(self, entry: Entry) -> None:
        owner, name, make = entry
        if not hasattr(owner, name):
            return
        put = _Put(owner, name, vars(owner).get(name, _INHERITED),
                   make(getattr(owner, name)))
        self._put.append(put)
        setattr(owner, name, put.replacement)

    def _take_back(self) -> None:
        """All that can be, the last first: an attribute may be there twice."""
        self._put = [put for put in reversed(self._put)
                     if not put.take_back()][::-1]
