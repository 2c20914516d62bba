"""What os.fork() makes of a lock that another thread holds."""

import os
import signal
import threading
import time

import pytest

from terrace._base.process_lock import ProcessLock


def code_of_child(body):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if body() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def takes(lock):
    with lock, lock:
        return True


def held_for(lock, seconds, does=lambda: None):
    """By a thread, which does that last; once it holds it."""
    held = threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(seconds)
            does()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return thread


def test_a_child_finds_whole_what_it_guards():
    lock, done = ProcessLock(), []
    thread = held_for(lock, 0.2, lambda: done.append(1))
    assert code_of_child(lambda: takes(lock) and done == [1]) == 0
    thread.join()
    assert takes(lock)


@pytest.mark.alone
def test_a_fork_does_not_wait_for_ever():
    lock = ProcessLock()
    thread = held_for(lock, 4)
    begin = time.monotonic()
    assert code_of_child(lambda: takes(lock)) == 0
    assert time.monotonic() - begin < 3.5
    thread.join()
    assert takes(lock)


def test_who_holds_it_may_fork():
    lock = ProcessLock()
    with lock:
        assert code_of_child(lambda: takes(lock)) == 0

    def leaves():
        lock.__exit__()
        return takes(lock)

    with lock:
        assert code_of_child(leaves) == 0
    thread = held_for(lock, 0)
    thread.join(10)
    assert not thread.is_alive()


def test_children_of_children_and_of_two_threads():
    lock, codes = ProcessLock(), []

    def fork():
        codes.append(code_of_child(
            lambda: takes(lock) and code_of_child(lambda: takes(lock)) == 0))

    threads = [threading.Thread(target=fork) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 6 and takes(lock)
