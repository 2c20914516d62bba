"""Calls that go on beside each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def at_once(*calls: Callable) -> None:
    """All of them, the last in this thread; raises what one of them met once all
    have ended."""
    with ThreadPoolExecutor(len(calls)) as threads:
        begun = [threads.submit(call) for call in calls[:-1]]
        calls[-1]()
    for each in begun:
        each.result()
