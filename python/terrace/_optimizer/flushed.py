"""An optimizer whose updates may go on after step()."""

from __future__ import annotations

from terrace._state.store import StateStore


class Flushed:
    """Of a class that has a store."""

    _store: StateStore | None

    def flush(self) -> None:
        """Where updates overlap: returns when all parameters of the last step
        are updated. Without it there is nothing to wait for.

        Raises:
            OSError, DataLossError, MemoryError: as step(), of an update that
                went on after it: raised once by whatever comes first of step(),
                flush(), state_dict(), a look at the state, a save and close(),
                after operations that take such a parameter raised RuntimeError.
                Unless it is a DataLossError, flush() then tries again with the
                gradients of that step, to the same bits, and so does step();
                the others raise it again. A load gives it up.
            RankError: of a process_group, another rank's update failed: told
                and tried again likewise, by a flush() or a step() that all
                ranks call; or a rank is gone.
        """
        self._store.flush()
