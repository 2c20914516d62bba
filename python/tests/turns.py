"""What the processes of one run of the tests have in common: whose turn it
is."""

import contextlib
import fcntl


@contextlib.contextmanager
def _locked(file, how):
    fcntl.flock(file, how)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


class Turns:
    """A test that is marked `alone` waits until the other processes' tests have
    ended. Those that would begin meanwhile wait at the door behind it, so that
    it does not wait for the end of the run. Each process has its own Turns, of
    two files that all of them see."""

    def __init__(self, door, room):
        self._door, self._room = open(door, 'rb'), open(room, 'rb')

    @contextlib.contextmanager
    def turn(self, alone):
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with contextlib.ExitStack() as inside:
            with _locked(self._door, fcntl.LOCK_EX):
                inside.enter_context(_locked(self._room, how))
            yield
