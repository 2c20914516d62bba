"""Who runs beside whom when the tests run in several processes."""

import fcntl
import threading
import time

import pytest

from turns import Turns


@pytest.fixture
def in_turn(tmp_path):
    """Begins a turn on a thread; the events that it has begun and is to end."""
    for name in ('door', 'room'):
        (tmp_path / name).touch()
    threads, ends = [], []

    def begin(alone):
        begun, end = threading.Event(), threading.Event()
        ends.append(end)

        def hold():
            with Turns(tmp_path / 'door', tmp_path / 'room').turn(alone):
                begun.set()
                end.wait(60)

        threads.append(threading.Thread(target=hold))
        threads[-1].start()
        return begun, end

    yield begin
    for end in ends:
        end.set()
    for thread in threads:
        thread.join()


def is_taken(door):
    with open(door, 'rb') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_others_run_beside_each_other(in_turn):
    assert in_turn(alone=False)[0].wait(60)
    assert in_turn(alone=False)[0].wait(60)


def test_one_that_is_alone_comes_behind_those_before_it_and_before_the_next(
        in_turn, tmp_path):
    first, first_ends = in_turn(alone=False)
    assert first.wait(60)
    alone, alone_ends = in_turn(alone=True)
    deadline = time.monotonic() + 60
    while not is_taken(tmp_path / 'door'):
        assert time.monotonic() < deadline
    assert not alone.is_set()
    second, _ = in_turn(alone=False)
    assert not second.wait(0.2)
    first_ends.set()
    assert alone.wait(60)
    assert not second.wait(0.2)
    alone_ends.set()
    assert second.wait(60)
